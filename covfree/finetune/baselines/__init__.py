"""Published training algorithms, to compare with closed-form heads; FedAvg is in ``averaging.py``."""
