// Search from the disk. The theme searches in a worker, and browsers start no worker from a file: here a hidden frame
// with the worker's script takes its place. The plugin offline would load the package iframe-worker for that from
// elsewhere, but for this file's name.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(script) {
      const frame = (this.frame = document.createElement("iframe"));
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.ready = new Promise((resolve) => {
        frame.contentDocument.open();
        // What the worker posts comes out here, instead of going to the frame itself.
        this.inside.postMessage = (data) => this.onmessage?.(new MessageEvent("message", { data }));
        frame.contentDocument.write(`<body><script src="${script}"></` + "script>");
        frame.onload = resolve;
        frame.contentDocument.close();
      });
    }
    terminate() {
      this.frame.remove();
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
