"""The papers' formulas in float64 NumPy with plain loops. Shares no code with the library.

Rows are lists of (mean, count, label). FedCOF: Goswami et al. 2024. Fed3R: Fanì et al. 2024. FedNCM: Legate
et al. 2023. AFL: He et al. 2025. FedCGS: Guan et al. 2025. Oracle Approximating Shrinkage: Chen et al. 2010,
in scikit-learn's form. Ledoit-Wolf: 2004.
"""

import math

import numpy as np
import scipy.stats


def f64(x):
    return np.asarray(x).astype(np.float64)


# Client statistics


def class_means(features, labels, num_classes):
    features = f64(features)
    means, counts = np.zeros((num_classes, features.shape[1])), np.zeros(num_classes, int)
    for c in range(num_classes):
        mine = [f for f, y in zip(features, labels, strict=True) if y == c]
        counts[c] = len(mine)
        if mine:
            means[c] = sum(mine) / len(mine)
    return means, counts


def class_covariances(features, labels, num_classes):
    features = f64(features)
    means, counts = class_means(features, labels, num_classes)
    result = np.zeros((num_classes, features.shape[1], features.shape[1]))
    for c in range(num_classes):
        for f, y in zip(features, labels, strict=True):
            if y == c and counts[c] > 1:
                result[c] += np.outer(f - means[c], f - means[c]) / (counts[c] - 1)
    return result


def gram(features, labels, num_classes):
    features = f64(features)
    matrix, sums = np.zeros((features.shape[1],) * 2), np.zeros((num_classes, features.shape[1]))
    for f, y in zip(features, labels, strict=True):
        if 0 <= y < num_classes:
            matrix += np.outer(f, f)
            sums[y] += f
    return matrix, sums


def client_rows(features, labels, clients):
    """One row a client and class, ordered by client, then class."""
    features = f64(features)
    groups = {}
    for f, y, k in zip(features, labels, clients, strict=True):
        if y >= 0 and k >= 0:
            groups.setdefault((int(k), int(y)), []).append(f)
    return [(sum(groups[key]) / len(groups[key]), len(groups[key]), key[1]) for key in sorted(groups)]


def example_rows(features, labels, clients=None):
    clients = np.zeros(len(labels), int) if clients is None else clients
    return [
        (f64(f), 1, int(y)) for f, y, k in zip(features, labels, clients, strict=True) if y >= 0 and k >= 0
    ]


# Estimators


def of_class(rows, c):
    return [(x, n) for x, n, y in rows if y == c and n > 0]


def moments(rows, num_classes):
    """N_c, K_c and μ_c (0 for an absent class)."""
    dim = len(rows[0][0])
    count, held, mean = np.zeros(num_classes), np.zeros(num_classes, int), np.zeros((num_classes, dim))
    for c in range(num_classes):
        for x, n in of_class(rows, c):
            count[c] += n
            held[c] += 1
            mean[c] += n * f64(x)
        if count[c] > 0:
            mean[c] /= count[c]
    return count, held, mean


def spread(rows, c, mean):
    """S_c = Σ_r n_r (x_r − μ_c)(x_r − μ_c)ᵀ."""
    total = np.zeros((len(mean), len(mean)))
    for x, n in of_class(rows, c):
        total += n * np.outer(f64(x) - mean, f64(x) - mean)
    return total


def estimate_covariance(means, counts):
    """FedCOF eq. 5 with the divisor K_c − 1; 0 with fewer than two rows."""
    rows = [(x, n, 0) for x, n in zip(means, counts, strict=True)]
    _, (held,), (mean,) = moments(rows, 1)
    return spread(rows, 0, mean) / (held - 1) if held > 1 else np.zeros((len(mean),) * 2)


def spread_degrees(rows, num_classes):
    return sum(max(k - 1, 0) for k in moments(rows, num_classes)[1])


def within_degrees(rows, num_classes):
    return sum(max(n - 1, 0) for n in moments(rows, num_classes)[0])


def within_scatter(rows, num_classes, weighting="per_class"):
    count, held, mean = moments(rows, num_classes)
    total = np.zeros((mean.shape[1],) * 2)
    for c in range(num_classes):
        if held[c] > 1:
            if weighting == "per_class":
                weight = max(count[c] - 1, 0) / (held[c] - 1)
            else:
                weight = within_degrees(rows, num_classes) / spread_degrees(rows, num_classes)
            total += weight * spread(rows, c, mean[c])
    return total


def exact_within_scatter(features, labels, num_classes):
    features, (means, _) = f64(features), class_means(features, labels, num_classes)
    total = np.zeros((features.shape[1],) * 2)
    for f, y in zip(features, labels, strict=True):
        if 0 <= y < num_classes:
            total += np.outer(f - means[y], f - means[y])
    return total


def grand_mean(rows, num_classes):
    count, _, mean = moments(rows, num_classes)
    return sum(n * m for n, m in zip(count, mean, strict=True)) / count.sum()


def between_scatter(rows, num_classes):
    count, _, mean = moments(rows, num_classes)
    centre = grand_mean(rows, num_classes)
    return sum(n * np.outer(m - centre, m - centre) for n, m in zip(count, mean, strict=True))


def grand_term(rows, num_classes):
    centre = grand_mean(rows, num_classes)
    return moments(rows, num_classes)[0].sum() * np.outer(centre, centre)


def aggregate_covariances(means, counts, covariances):
    """FedCOF eq. 24, as printed: [Σ(n_k − 1)S_k + Σ n_k μ_k μ_kᵀ − N μμᵀ]/(N − 1)."""
    means, total = f64(means), 0.0
    size = sum(n for n in counts if n > 0)
    mean = sum(n * m for n, m in zip(counts, means, strict=True) if n > 0) / size
    for n, m, s in zip(counts, means, covariances, strict=True):
        if n > 0:
            total = total + n * np.outer(m, m) + ((n - 1) * f64(s) if n > 1 else 0)
    return (total - size * np.outer(mean, mean)) / (size - 1)


# Shrinkage of Σ̂ with ν degrees of freedom


def diagonal_loading(matrix, gamma):
    return matrix + gamma * np.eye(len(matrix))


def relative(matrix, gamma):
    return matrix + gamma * np.trace(matrix) / len(matrix) * np.eye(len(matrix))


def convex(matrix, weight):
    weight = min(max(weight, 0.0), 1.0) if math.isfinite(weight) else 1.0
    return (1 - weight) * matrix + weight * np.trace(matrix) / len(matrix) * np.eye(len(matrix))


def oas(matrix, degrees):
    dim, trace, square = len(matrix), np.trace(matrix), np.trace(matrix @ matrix)
    gap = (degrees + 1) * (square - trace**2 / dim)
    return convex(matrix, (square + trace**2) / gap if gap > 0 else math.inf)


def ledoit_wolf(matrix, degrees, observations):
    """``observations`` z_r with Σ̂ = Σ z zᵀ/ν."""
    dim, trace, square = len(matrix), np.trace(matrix), np.trace(matrix @ matrix)
    noise = sum((z @ z) ** 2 for z in observations) / degrees**2 - square / degrees
    gap = square - trace**2 / dim
    return convex(matrix, min(noise, gap) / gap if gap > 0 else math.inf)


# Heads: (weight [d, C], bias [C])


def _columns(weight, count, unit):
    weight, bias = f64(weight).copy(), np.zeros(len(count))
    for c in range(len(count)):
        norm = np.linalg.norm(weight[:, c])
        if unit and norm > 0:
            weight[:, c] /= norm
        if count[c] == 0:
            weight[:, c], bias[c] = 0, -math.inf
    return weight, bias


def ncm_head(count, mean):
    return _columns(mean.T, count, unit=True)


def ridge_head(matrix, count, mean, ridge=0.0, unit=True):
    sums = np.stack([n * m for n, m in zip(count, mean, strict=True)])
    return _columns(np.linalg.solve(diagonal_loading(matrix, ridge), sums.T), count, unit=unit)


def lda_head(covariance, count, mean, priors=None):
    weight, bias = _columns(np.linalg.solve(covariance, mean.T), count, unit=False)
    priors = count / count.sum() if priors is None else f64(priors) / np.sum(priors)
    for c in range(len(count)):
        if count[c] > 0:
            log_prior = math.log(priors[c]) if priors[c] > 0 else -math.inf
            bias[c] = -0.5 * mean[c] @ weight[:, c] + log_prior
    centre = count @ mean / max(count.sum(), 1)
    return _less_shared(weight, bias, np.linalg.solve(covariance, centre), centre)


def _less_shared(weight, bias, shared, centre):
    """The textbook's LDA less a term of the scores that all classes share, xᵀΣ⁻¹μ_g − ½ μ_gᵀΣ⁻¹μ_g."""
    predicted = np.isfinite(bias)
    return np.where(predicted, weight - shared[:, None], 0), bias + 0.5 * centre @ shared


# Methods, from flat examples


def fedncm(features, labels, clients, num_classes):
    count, _, mean = moments(client_rows(features, labels, clients), num_classes)
    return ncm_head(count, mean)


def fed3r(features, labels, clients, num_classes, ridge=1.0, scatter="both"):
    rows = example_rows(features, labels, clients)
    count, _, mean = moments(rows, num_classes)
    if scatter == "both":
        matrix = gram([x for x, _, _ in rows], [y for _, _, y in rows], num_classes)[0]
    else:
        matrix = exact_within_scatter([x for x, _, _ in rows], [y for _, _, y in rows], num_classes)
        matrix = matrix + grand_term(rows, num_classes)
    return ridge_head(matrix, count, mean, ridge)


def afl(features, labels, clients, num_classes, ridge=0.0):
    """Ridge regression to one-hot labels on the pooled examples, or least squares of minimum norm."""
    rows = example_rows(features, labels, clients)
    count, _, _ = moments(rows, num_classes)
    table = np.stack([x for x, _, _ in rows])
    target = np.stack([np.eye(num_classes)[y] for _, _, y in rows])
    if ridge == 0:
        weight = np.linalg.lstsq(table, target, rcond=1e-10)[0]
    else:
        weight = np.linalg.solve(diagonal_loading(table.T @ table, ridge), table.T @ target)
    return _columns(weight, count, unit=False)


def fedcgs(features, labels, clients, num_classes, gamma=0.0):
    """The formulas of LDA with the covariance of all examples; pseudo-inverse where that is singular."""
    rows = example_rows(features, labels, clients)
    count, _, mean = moments(rows, num_classes)
    centre = grand_mean(rows, num_classes)
    total = sum(np.outer(x - centre, x - centre) for x, _, _ in rows) / (len(rows) - 1)
    weight, bias = _columns(
        np.linalg.lstsq(diagonal_loading(total, gamma), mean.T, rcond=1e-10)[0], count, unit=False
    )
    for c in range(num_classes):
        if count[c] > 0:
            bias[c] = -0.5 * mean[c] @ weight[:, c] + math.log(count[c] / count.sum())
    shared = np.linalg.lstsq(diagonal_loading(total, gamma), centre, rcond=1e-10)[0]
    return _less_shared(weight, bias, shared, centre)


def gaussian_scores(count, mean, covariances):
    """Log-priors plus log-densities without (2π)^(−d/2), as a function of features."""

    def scores(features):
        result = np.full((len(features), len(count)), -math.inf)
        for i, x in enumerate(f64(features)):
            for c in range(len(count)):
                if count[c] > 0:
                    away = x - mean[c]
                    square = away @ np.linalg.solve(covariances[c], away)
                    log_prior = math.log(count[c] / count.sum())
                    result[i, c] = log_prior - (np.linalg.slogdet(covariances[c])[1] + square) / 2
        return result

    return scores


def drawn_together(rows, num_classes, gamma, observations, diagonal):
    """(S_c + κ Σ̃)/(ν_c + κ) of every class, ν_c = K_c − 1."""
    _, held, mean = moments(rows, num_classes)
    part = (lambda s: np.diag(np.diag(s))) if diagonal else (lambda s: s)
    scatters = [part(spread(rows, c, mean[c])) for c in range(num_classes)]
    pooled = diagonal_loading(sum(scatters) / spread_degrees(rows, num_classes), gamma)
    return [
        (s + observations * pooled) / (max(k - 1, 0) + observations)
        for s, k in zip(scatters, held, strict=True)
    ]


def qda(features, labels, clients, num_classes, gamma, prior=1.0, means=False):
    rows = (client_rows if means else example_rows)(features, labels, clients)
    observations = prior * len(rows[0][0])
    count, _, mean = moments(rows, num_classes)
    return gaussian_scores(count, mean, drawn_together(rows, num_classes, gamma, observations, False))


def naive_bayes(features, labels, clients, num_classes, prior=1.0, means=False):
    rows = (client_rows if means else example_rows)(features, labels, clients)
    count, _, mean = moments(rows, num_classes)
    return gaussian_scores(count, mean, drawn_together(rows, num_classes, 0.0, prior, True))


def client_variance(rows, count, mean, variance):
    """τ of the line a (1 + τ n) through the rows' distances, in bins of two a doubling of n."""
    bins, dim = {}, mean.shape[1]
    for x, n, y in rows:
        if y < 0 or n <= 0 or n > 0.9 * count[y]:
            continue
        square = n * ((f64(x) - mean[y]) ** 2).sum() / (variance * dim) / (1 - n / count[y])
        bins.setdefault(math.floor(2 * math.log2(n) + 0.01), []).append((n, square))
    number = f64([len(b) for b in bins.values()])
    size = f64([np.mean([n for n, _ in b]) for b in bins.values()])
    square = f64([np.mean([z for _, z in b]) for b in bins.values()])
    found = 0.0
    for _ in range(5):
        weight = number / (1 + found * size) ** 2
        weight = weight / weight.sum() if len(weight) else weight
        spread = (weight * (size - weight @ size) ** 2).sum()
        if not len(weight) or spread <= 1e-6 * (weight @ size) ** 2:
            return 0.0
        slope = (weight * (size - weight @ size) * square).sum() / spread
        line = weight @ square + slope * (size - weight @ size)
        noise = f64(
            [
                np.mean([(z - fit) ** 2 for _, z in b]) / len(b)
                for b, fit in zip(bins.values(), line, strict=True)
            ]
        )
        error = math.sqrt((weight**2 * (size - weight @ size) ** 2 * noise).sum()) / spread
        slope = max(slope - 2 * error, 0.0)
        start = weight @ square - slope * (weight @ size)
        found = slope / start if start > 0 else found
    return found


def student_scores(rows, covariance, num_classes, prior=1.0):
    """Log-priors plus Student log-densities, from matrices of full size."""
    count, held, mean = moments(rows, num_classes)
    dim = mean.shape[1]
    kappa = prior * dim
    tau = client_variance(rows, count, mean, np.trace(covariance) / dim)

    def scores(features):
        result = np.full((len(features), num_classes), -math.inf)
        for c in np.flatnonzero(count):
            matrix = kappa * covariance
            for x, n in of_class(rows, c):
                matrix = matrix + n / (1 + tau * n) * np.outer(f64(x) - mean[c], f64(x) - mean[c])
            freedom = kappa + held[c] + 1
            shape = matrix * (1 + 1 / count[c]) / freedom
            law = scipy.stats.multivariate_t(mean[c], shape, df=freedom)
            result[:, c] = math.log(count[c] / count.sum()) + law.logpdf(f64(features))
        # Up to a constant that all classes share.
        return result - np.where(np.isfinite(result), result, 0).sum(1, keepdims=True) / (count > 0).sum()

    return scores


def fedcof_student(features, labels, clients, num_classes, gamma, prior=1.0):
    rows = client_rows(features, labels, clients)
    count, held, _ = moments(rows, num_classes)
    degrees = sum(n - 1 for n, k in zip(count, held, strict=True) if k > 1)
    covariance = diagonal_loading(within_scatter(rows, num_classes) / degrees, gamma)
    return student_scores(rows, covariance, num_classes, prior)


def from_rows(rows, num_classes, shrink, weighting, head):
    """FedCOF Alg. 1 on any rows; ``shrink`` is a function of Σ̂."""
    count, held, mean = moments(rows, num_classes)
    degrees = within_degrees(rows, num_classes)
    scatter = within_scatter(rows, num_classes, weighting)
    if head == "lda":
        # Classes of one row add nothing, per class; pooled they have been made up for.
        if weighting == "per_class":
            degrees = sum(n - 1 for n, k in zip(count, held, strict=True) if k > 1)
        return lda_head(shrink(scatter / degrees), count, mean)
    return ridge_head(degrees * shrink(scatter / degrees) + grand_term(rows, num_classes), count, mean)


def fedcof(features, labels, clients, num_classes, gamma, weighting="per_class", head="lda"):
    rows = client_rows(features, labels, clients)
    return from_rows(rows, num_classes, lambda s: diagonal_loading(s, gamma), weighting, head)


def client_covariances(features, labels, clients, num_classes):
    """For each class, what its clients send: (mean, count, unbiased covariance)."""
    features, labels, clients = f64(features), np.asarray(labels), np.asarray(clients)
    result = []
    for c in range(num_classes):
        parts = []
        for k in sorted({int(k) for k, y in zip(clients, labels, strict=True) if k >= 0 and y == c}):
            mine = features[(clients == k) & (labels == c)]
            zeros = np.zeros(len(mine), int)
            means, counts = class_means(mine, zeros, 1)
            parts.append((means[0], counts[0], class_covariances(mine, zeros, 1)[0]))
        result.append(parts)
    return result


def fedcof_oracle(features, labels, clients, num_classes, gamma, head="lda", covariance="full"):
    """From the clients' own covariances: by eq. 24, class by class, then pooled.

    Of a diagonal or one variance nothing is known off the diagonal but how the clients' means spread.
    """
    rows = client_rows(features, labels, clients)
    count, _, mean = moments(rows, num_classes)
    scatter = np.zeros((mean.shape[1],) * 2)
    for c, parts in enumerate(client_covariances(features, labels, clients, num_classes)):
        if covariance == "full":
            if count[c] > 1:
                scatter += (count[c] - 1) * aggregate_covariances(*zip(*parts, strict=True))
            continue
        for x, n, s in parts:
            variance = np.diag(s) if covariance == "diagonal" else np.full(len(s), np.trace(s) / len(s))
            scatter += (n - 1) * np.diag(variance) + n * np.outer(x - mean[c], x - mean[c])
    degrees = sum(max(n - 1, 0) for n in count)
    shrunk = diagonal_loading(scatter / degrees, gamma)
    if head == "lda":
        return lda_head(shrunk, count, mean)
    return ridge_head(degrees * shrunk + grand_term(rows, num_classes), count, mean)


def _as_list(rows):
    return [(f64(x), float(n), int(y)) for x, n, y in zip(rows.mean, rows.count, rows.label, strict=True)]


def fedcof_components(rows, num_classes, gamma):
    """From the means that the clients sent: what is seen, and (N_c − K_c) of what is hidden."""
    table = _as_list(rows)
    count, held, mean = moments(table, num_classes)
    scatter, seen = np.zeros((mean.shape[1],) * 2), 0
    for c in range(num_classes):
        inside, degrees = 0.0, 0
        for k in sorted(set(rows.client.tolist())):
            mine = [
                (x, n, y)
                for (x, n, y), owner in zip(table, rows.client, strict=True)
                if owner == k and y == c
            ]
            if mine:
                own = sum(n * x for x, n, _ in mine) / sum(n for _, n, _ in mine)
                inside, degrees = inside + spread(mine, c, own), degrees + len(mine) - 1
        scatter += spread(table, c, mean[c])
        # What of the examples' degrees of freedom the scatter stands for.
        seen += max(held[c] - 1, 0)
        if degrees > 0:
            scatter += (count[c] - held[c]) / degrees * inside
            seen += count[c] - held[c]
    return lda_head(diagonal_loading(scatter / seen, gamma), count, mean)


def residuals_covariance(features, labels, clients, num_classes, gamma, num_directions):
    """From the scatter between the clients' means, and the leading part of that inside each client's."""
    rows = client_rows(features, labels, clients)
    _, _, mean = moments(rows, num_classes)
    scatter = sum(spread(rows, c, mean[c]) for c in range(num_classes))
    for k in sorted(set(clients)):
        mine = [f64(features[(clients == k) & (labels == c)]) for c in sorted(set(labels[clients == k]))]
        residual = np.concatenate([examples - examples.mean(0) for examples in mine])
        _, size, vectors = np.linalg.svd(residual, full_matrices=False)
        for s, v in list(zip(size, vectors, strict=True))[:num_directions]:
            scatter = scatter + s**2 * np.outer(v, v)
    return diagonal_loading(scatter / within_degrees(rows, num_classes), gamma)


def fedcof_residuals(features, labels, clients, num_classes, gamma, num_directions):
    covariance = residuals_covariance(features, labels, clients, num_classes, gamma, num_directions)
    count, _, mean = moments(client_rows(features, labels, clients), num_classes)
    return lda_head(covariance, count, mean)


def fedcof_residuals_student(features, labels, clients, num_classes, gamma, num_directions):
    covariance = residuals_covariance(features, labels, clients, num_classes, gamma, num_directions)
    return student_scores(client_rows(features, labels, clients), covariance, num_classes)


def stsa_e(rows, num_classes, ridge):
    """From sums of subsets, as the paper prints it, with the subsets that hold a class as its K."""
    count, held, mean = moments(rows, num_classes)
    dim = mean.shape[1]
    matrix = np.zeros((dim, dim))
    for c in range(num_classes):
        total = count[c] * mean[c]
        if held[c] == 1:  # 0/0 in the formula: the class shows no spread
            matrix += np.outer(total, total) / count[c]
        if held[c] < 2:
            continue
        for x, n, y in rows:
            if y == c:
                matrix += (count[c] - 1) / (held[c] - 1) * np.outer(n * x, n * x) / n
        matrix -= (count[c] - held[c]) / ((held[c] - 1) * count[c]) * np.outer(total, total)
    return ridge_head(matrix, count, mean, ridge, unit=False)


def fedran(features, labels, clients, num_classes, ridge, num_directions):
    """From the leading singular vectors of each client's examples, and c_k = Σs⁴/Σs² of the others."""
    rows = client_rows(features, labels, clients)
    count, _, mean = moments(rows, num_classes)
    matrix, left_out = np.zeros((mean.shape[1],) * 2), []
    for k in sorted(set(clients)):
        _, size, vectors = np.linalg.svd(f64(features[clients == k]), full_matrices=False)
        for s, v in list(zip(size, vectors, strict=True))[:num_directions]:
            matrix += s**2 * np.outer(v, v)
        others = [s for s in size[num_directions:] if s > 1e-9 * size[0]]
        if others:
            left_out.append(sum(s**4 for s in others) / sum(s**2 for s in others))
    if left_out:
        matrix += np.average(left_out, weights=left_out) * np.eye(len(matrix))
    return ridge_head(matrix, count, mean, ridge, unit=False)
