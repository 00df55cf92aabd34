"""Heads made exact in rounds: the formulas, the limit, in one call and in rounds, and what is refused."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import refinement_oracle as oracle
from variants import slow

import covfree
from covfree import rounds as federated
from covfree.data import load_digits
from covfree.data.partitions import inner_dirichlet

CLASSES, DIM, CLIENTS, SIZE = 4, 6, 7, 280
KEY = jax.random.key(0)


def federation(seed=0, shift=0.5, size=SIZE):
    """Classes that overlap, a covariance far from round, clients that differ; class 3 is at one client."""
    rng = np.random.default_rng(seed)
    labels, clients = rng.integers(0, CLASSES, size), rng.integers(0, CLIENTS, size)
    clients[labels == 3] = 0
    root = rng.normal(size=(DIM, DIM)) * np.logspace(0, -1, DIM)
    features = rng.normal(size=(size, DIM)) @ root + rng.normal(size=(CLASSES, DIM))[labels]
    features += shift * rng.normal(size=(CLIENTS, DIM))[clients]
    return features, labels, clients


DATA = federation()
# Most tests run this one, with other numbers and other examples of the same shapes, so that it compiles once.
METHOD = covfree.refined(covfree.fedcof(0.3), 2, 2)


def fit(method, data=DATA):
    return covfree.fit(method, data[0].astype(np.float32), *data[1:], num_classes=CLASSES)


def estimate(method, data=DATA):
    rows = covfree.summarise(method, jnp.asarray(data[0], jnp.float32), *data[1:])
    totals = covfree.accumulate(method, rows, num_classes=CLASSES)
    return np.asarray(method.system(method.params, *totals).dense(), float)


def in_rounds(method=METHOD, data=DATA, **options):
    algorithm = federated.as_algorithm(method, num_classes=CLASSES)
    return federated.run(algorithm, data[0].astype(np.float32), *data[1:], key=KEY, **options)


# The automatic rule takes long to compile: where it is not the subject, shrinkage is a number.
@pytest.mark.parametrize(("most", "gamma", "numbers"), [(2, 0.3, [2, 3]), *slow((None, None, [2]))])
def test_heads_are_those_of_the_formulas(most, gamma, numbers):
    method = covfree.fedcof() if gamma is None else covfree.fedcof(gamma)
    features, labels, _ = DATA
    count, mean = oracle.moments(features, labels, CLASSES)
    grand = (count[:, None] * mean).sum(0) / count.sum()
    exact = oracle.exact_covariance(features, labels, CLASSES, gamma)
    expected, _ = oracle.weights(exact, estimate(method), (mean - grand).T, 3, most or CLASSES - 1)
    for rounds in numbers:
        head = fit(covfree.refined(method, rounds, most))
        weight, bias = oracle.lda(expected[min(rounds, len(expected) - 1)], count, mean)
        scale = np.abs(weight).max()
        np.testing.assert_allclose(head.weight, weight, atol=2e-4 * scale)
        np.testing.assert_allclose(head.bias, bias, atol=2e-3 * scale)


@pytest.mark.slow
def test_residual_directions_are_a_start_like_any_other():
    """As many as there are make the start exact; of fewer, rounds lead to the same limit."""
    exact = fit(covfree.fedcof_oracle(0.1))
    scale = float(jnp.abs(exact.weight).max())
    for number, rounds, directions in ((DIM, 1, 1), (1, 2, None)):
        head = fit(covfree.refined(covfree.fedcof_residuals(number, 0.1), rounds, directions))
        chex.assert_trees_all_close(head, exact, rtol=1e-3, atol=1e-4 * scale)


@pytest.mark.slow
def test_student_heads_are_about_the_covariance_that_gives_the_linear_head():
    features = DATA[0].astype(np.float32)
    linear, exact = fit(METHOD), fit(covfree.fedcof_oracle(0.3, head="student"))
    scale = float(jnp.abs(linear.weight).max())
    method = covfree.refined(covfree.fedcof(0.3, head="student"), 2, 2)
    head = fit(method)
    assert isinstance(head, covfree.StudentHead)
    chex.assert_trees_all_close(head.linear, linear, rtol=1e-3, atol=1e-3 * scale)
    chex.assert_trees_all_close(in_rounds(method).result(features), head(features), rtol=1e-3, atol=1e-2)
    # Beside the linear head, the known matrix decides: S + γI on the known directions, the start elsewhere.
    start = estimate(covfree.fedcof(0.3))
    count, mean = oracle.moments(*DATA[:2], CLASSES)
    right = (mean - count @ mean / count.sum()).T
    exact_matrix = oracle.exact_covariance(*DATA[:2], CLASSES, 0.3)
    found, _ = oracle.weights(exact_matrix, start, right, 2, 2)
    root = np.asarray(head.root, float)
    np.testing.assert_allclose(root @ root.T @ found[2], right, atol=1e-3 * np.abs(right).max())
    # All directions known: the oracle's head, with the same class parts. Of sums, too, with few directions.
    whole = fit(covfree.refined(covfree.fedcof(0.3, head="student"), 3, 2))
    chex.assert_trees_all_close(whole(features), exact(features), rtol=1e-3, atol=1e-2)
    few = covfree.refined(covfree.fedcof(0.3, head=covfree.student(rank=DIM)), 3, 2)
    sums = federated.as_algorithm(few, num_classes=CLASSES, uploads="sums")
    done = federated.run(sums, features, *DATA[1:], key=KEY)
    same = np.asarray(done.result(features).argmax(1) == whole(features).argmax(1))
    assert same.mean() > 0.98


@pytest.mark.slow
def test_a_start_without_a_covariance():
    """One client, no variance: the covariance is what clients answered, and its level elsewhere."""
    features, labels, clients = DATA
    one = features, labels, np.zeros_like(clients)
    heads = [
        fit(covfree.refined(covfree.fedcof(f"{share}%", head="student"), 1), one) for share in (1e-3, 1e-6)
    ]
    chex.assert_trees_all_close(*heads, rtol=1e-2, atol=1e-2)
    exact = oracle.exact_covariance(*one[:2], CLASSES, 0.0)
    count, mean = oracle.moments(*one[:2], CLASSES)
    # The first directions span the centred class means.
    span = np.linalg.svd((mean - count @ mean / count.sum()).T)[0][:, :3]
    known = span.T @ exact @ span
    level = np.trace(known) / 3
    expected = level * (np.eye(DIM) - span @ span.T) + exact @ span @ np.linalg.inv(known) @ span.T @ exact
    root = np.asarray(heads[1].root, float)
    np.testing.assert_allclose(root @ root.T, expected, rtol=1e-3, atol=1e-4 * level)
    with pytest.raises(ValueError, match="a share such as '10%' is 0 if no class has two rows"):
        fit(covfree.fedcof("10%", head="student"), one)


def test_ridge_heads_are_those_of_the_formulas():
    features, labels, _ = DATA
    method = covfree.fedcof(0.3, head="ridge", scatter="both")
    count, mean = oracle.moments(features, labels, CLASSES)
    degrees = len(labels) - CLASSES
    exact = features.T @ features + 0.3 * degrees * np.eye(DIM)
    expected, _ = oracle.weights(exact, estimate(method), count * mean.T, 1, CLASSES)
    head = fit(covfree.refined(method, 1))
    weight = expected[1] / np.linalg.norm(expected[1], axis=0)
    np.testing.assert_allclose(head.weight, weight, atol=1e-3)


def test_the_limit_is_the_oracle_and_fed3r():
    degrees = len(DATA[1]) - CLASSES
    lda = fit(covfree.refined(covfree.fedcof(0.1), 2))
    exact = fit(covfree.fedcof_oracle(0.1))
    chex.assert_trees_all_close(lda, exact, rtol=1e-3, atol=1e-4 * float(jnp.abs(exact.weight).max()))
    ridge = fit(covfree.refined(covfree.fedcof(2.0 / degrees, head="ridge", scatter="both"), 2))
    chex.assert_trees_all_close(ridge, fit(covfree.fed3r(2.0)), atol=1e-3)
    # Others than the default: γ of the exact covariance is not that of the estimate.
    other = fit(covfree.refined(covfree.fedcof(0.1), 2, shrinkage=0.7))
    exact = fit(covfree.fedcof_oracle(0.7))
    chex.assert_trees_all_close(other, exact, rtol=1e-3, atol=1e-4 * float(jnp.abs(exact.weight).max()))


@pytest.mark.slow
def test_the_predicted_error_is_near_the_true_one_and_the_best_in_the_span_never_grows_worse():
    """Where A is far from the estimate: eigenvalues over three decades, and an estimate of noise."""
    from covfree.core.linalg import factorise
    from covfree.methods.refine.search import advance, begin

    rng = np.random.default_rng(1)
    turn = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    exact = (turn * np.logspace(0, 3, 40)) @ turn.T
    noise = rng.normal(size=(40, 60)) / np.sqrt(60)
    estimate = np.linalg.cholesky(exact) @ noise
    estimate = estimate @ estimate.T * 5
    right = rng.normal(size=(40, 3))
    solution = np.linalg.solve(exact, right)

    def error(weight):
        off = np.asarray(weight, float) - solution
        return np.sqrt(np.trace(off.T @ exact @ off) / np.trace(solution.T @ right))

    expected, predicted = oracle.weights(exact, estimate, right, 6, 3)
    search = begin(factorise(jnp.asarray(estimate, jnp.float32)), jnp.asarray(right, jnp.float32), 3)
    spans, before = [], error(search.weight)
    step = jax.jit(advance, static_argnums=2)
    for index in range(6):
        images = jnp.asarray(exact @ np.asarray(search.directions, float), jnp.float32)
        search = step(search, images, 3)
        span = np.asarray(search.span, float)
        best = span @ np.linalg.solve(span.T @ exact @ span, span.T @ right)
        spans.append(error(best))
        np.testing.assert_allclose(span.T @ span, np.eye(span.shape[1]), atol=1e-5)
        np.testing.assert_allclose(error(search.weight), error(expected[index + 1]), rtol=0.02)
        np.testing.assert_allclose(search.error, predicted[index], rtol=0.02)
        # An estimate of what is there before the last step; here it is never off by more than a half.
        assert 0.5 < float(search.error) / spans[-1] < 1.5
    assert np.all(np.diff(spans) <= 1e-6)
    assert error(search.weight) < 0.2 * before


def test_an_exact_estimate_stays_as_it_is():
    from covfree.core.linalg import factorise
    from covfree.methods.refine.search import advance, begin

    matrix = jnp.diag(jnp.logspace(0, 3, 8))
    right = jax.random.normal(KEY, (8, 3))
    search = begin(factorise(matrix), right, 3)
    for _ in range(3):
        search = jax.jit(advance, static_argnums=2)(search, matrix @ search.directions, 3)
        np.testing.assert_allclose(matrix @ search.weight, right, atol=1e-4)
        assert float(search.error) < 1e-3


@pytest.mark.slow
def test_in_rounds_as_in_one_call():
    features, labels, clients = DATA
    expected = fit(METHOD)
    sums = federated.as_algorithm(METHOD, num_classes=CLASSES, uploads="sums")
    done = in_rounds()
    added = federated.run(sums, features.astype(np.float32), labels, clients, key=KEY)
    for each in (done, added):
        chex.assert_trees_all_close(each.result, expected, rtol=1e-3, atol=1e-3)
        errors = [record.get("error") for record in each.history]
        assert errors[:-2] == [None] * (len(errors) - 2)
        assert 1 > errors[-2] > errors[-1] > 0
    sent = covfree.sent_bytes(METHOD, labels, clients, dim=DIM)
    # In a simulation rows also name their clients.
    names = 4 * covfree.count_rows(labels, clients)
    assert sum(record["bytes_up"] for record in done.history) == sent.total + names
    down = covfree.received_bytes(METHOD, labels, clients, dim=DIM)
    assert sum(record["bytes_down"] for record in done.history) == down


@pytest.mark.slow
def test_those_who_stay_away_do_not_bias_the_sum():
    """Clients alike but for their means: the others' products stand for those of the one that is missing."""
    rng = np.random.default_rng(3)
    each = SIZE // CLIENTS
    residuals = rng.normal(size=(each, DIM)) * np.logspace(0, -1, DIM)
    labels = np.arange(each) % CLASSES
    residuals -= np.stack([residuals[labels == c].mean(0) for c in range(CLASSES)])[labels]
    means = rng.normal(size=(CLIENTS, CLASSES, DIM))
    features = np.concatenate([residuals + means[k][labels] for k in range(CLIENTS)])
    data = features, np.tile(labels, CLIENTS), np.repeat(np.arange(CLIENTS), each)
    everyone = np.arange(CLIENTS)

    def head(*came):
        drawn = np.stack([np.concatenate([who, np.full(CLIENTS - len(who), -1)]) for who in came])
        return in_rounds(data=data, participation=drawn).result

    whole = head(everyone, everyone, everyone)
    some = head(everyone, everyone[2:], everyone[:3])
    chex.assert_trees_all_close(some, whole, rtol=1e-3, atol=1e-3 * float(jnp.abs(whole.weight).max()))
    # A round to which nobody comes changes nothing.
    nobody = head(everyone, everyone[:0], everyone[:0])
    chex.assert_trees_all_close(nobody, fit(covfree.fedcof(0.3), data), rtol=1e-4, atol=1e-4)
    later, once = head(everyone, everyone[:0], everyone), head(everyone, everyone, everyone[:0])
    chex.assert_trees_all_close(later, once, rtol=1e-3, atol=1e-3 * float(jnp.abs(once.weight).max()))
    assert not np.allclose(once.weight, nobody.weight, rtol=0.01)


def test_of_sums_all_rounds_need_the_same_clients():
    algorithm = federated.as_algorithm(
        covfree.refined(covfree.fedcof(), 1), num_classes=CLASSES, uploads="sums"
    )
    with pytest.raises(ValueError, match="participation: expected the uploads of the same clients"):
        federated.run(
            algorithm,
            DATA[0].astype(np.float32),
            *DATA[1:],
            key=KEY,
            participation=np.array([[0, 1], [0, 1], [1, 2]]),
        )


@pytest.mark.slow
def test_numbers_are_swept_and_differentiated():
    features, labels, clients = (jnp.asarray(part) for part in DATA)
    features = features.astype(jnp.float32)

    def loss(gamma, features):
        method = covfree.refined(covfree.fedcof(gamma), 2, 2)
        head = covfree.fit(method, features, labels, clients, num_classes=CLASSES)
        return head(features).var(), head

    @jax.jit
    @chex.assert_max_traces(n=1)
    def heads(gammas, features):
        slopes = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
        (_, found), gradients = jax.vmap(slopes, (0, None))(gammas, features)
        return found, gradients

    gammas = jnp.array([0.05, 0.3])
    swept, gradients = heads(gammas, features)
    heads(2 * gammas, features)
    for index, gamma in enumerate((0.05, 0.3)):
        one = fit(covfree.refined(covfree.fedcof(gamma), 2, 2))
        own = jax.tree.map(lambda x, index=index: x[index], swept)
        chex.assert_trees_all_close(own, one, rtol=1e-3, atol=1e-3)
    chex.assert_tree_all_finite(gradients)
    assert (gradients[0] != 0).all()


def test_far_from_zero():
    near = fit(covfree.refined(covfree.fedcof(), 2))
    features = DATA[0].astype(np.float32)
    far = features + np.float32(2**13)
    head = covfree.fit(covfree.refined(covfree.fedcof(), 2), far, *DATA[1:], num_classes=CLASSES)
    same = np.asarray(near(features).argmax(1) == head(far).argmax(1))
    assert same.mean() > 0.98


FIRST = np.arange(SIZE)


@pytest.mark.parametrize(
    "data",
    [
        (DATA[0], DATA[1], np.zeros_like(DATA[2])),  # one client
        # Of other numbers of rows: one example a client and class; absent classes.
        pytest.param((DATA[0], np.where(FIRST < CLASSES, FIRST, -1), FIRST), marks=pytest.mark.slow),
        pytest.param((DATA[0], np.where(DATA[1] < 2, DATA[1], -1), DATA[2]), marks=pytest.mark.slow),
        (np.zeros_like(DATA[0]), DATA[1], DATA[2]),  # nothing to tell apart
        (1e-12 * DATA[0], DATA[1], DATA[2]),
        (1e12 * DATA[0], DATA[1], DATA[2]),
    ],
    ids=["one client", "singles", "absent", "constant", "tiny", "huge"],
)
def test_degenerate_federations_have_a_head(data):
    head = covfree.fit(
        covfree.refined(covfree.fedcof(), 2), data[0].astype(np.float32), *data[1:], num_classes=CLASSES
    )
    chex.assert_tree_all_finite(head)
    assert set(np.unique(head(data[0].astype(np.float32)).argmax(1))) <= set(np.unique(data[1][data[1] >= 0]))


def test_one_client_needs_one_round_at_most():
    """All classes of one client: FedCOF sees no spread, a round of products all that matters."""
    data = DATA[0], DATA[1], np.zeros_like(DATA[2])
    exact = fit(covfree.fedcof_oracle(covfree.pseudo_observations()), data)
    head = fit(covfree.refined(covfree.fedcof(), 2), data)
    accuracy = [float(covfree.evaluate(h, DATA[0].astype(np.float32), DATA[1])) for h in (exact, head)]
    assert accuracy[1] >= accuracy[0] - 0.01


@pytest.mark.slow
def test_most_of_the_gap_closes_on_digits():
    data = load_digits(seed=1)
    train, test = (data.train_features, data.train_labels), (data.test_features, data.test_labels)
    clients = inner_dirichlet(data.train_labels, 10, 0.1, seed=1)

    def accuracy(method):
        return float(covfree.evaluate(covfree.fit(method, *train, clients), *test))

    # A rule that is quick to compile.
    rule = covfree.pseudo_observations()
    start, exact = accuracy(covfree.fedcof(rule)), accuracy(covfree.fedcof_oracle(rule))
    once, thrice = (accuracy(covfree.refined(covfree.fedcof(rule), rounds)) for rounds in (1, 3))
    assert exact > start + 0.04
    assert once > start + 0.5 * (exact - start)
    assert thrice > start + 0.75 * (exact - start)
    assert thrice > once - 0.005


def test_costs():
    labels, clients = DATA[1], DATA[2]
    method = covfree.refined(covfree.fedcof(), 3)
    # Three directions of six dimensions: all are known after two rounds.
    assert covfree.received_bytes(method, labels, clients, dim=DIM) == 4 * CLIENTS * DIM * 6
    plain = covfree.fedcof()
    first = covfree.sent_bytes(plain, labels, clients, dim=DIM)
    sent = covfree.sent_bytes(method, labels, clients, dim=DIM)
    assert sent.statistics - first.statistics == 4 * CLIENTS * (DIM * 6 + 3 * 2)
    assert sent.counts == first.counts
    flops = [covfree.client_flops(each, labels, clients, dim=DIM) for each in (plain, method)]
    assert flops[1] - flops[0] == 4 * len(labels) * DIM * 6
    assert covfree.received_bytes(covfree.fed3r(), labels, clients, dim=DIM) == 0
    mapped = covfree.refined(covfree.fedcof().with_feature_map(covfree.relu_features(20)), 1)
    assert covfree.received_bytes(mapped, labels, clients, dim=DIM) == 4 * CLIENTS * 20 * 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: covfree.refined(covfree.fedncm()),
            "expected one with an LDA, ridge or Student head .* got 'fedncm'",
        ),
        (lambda: covfree.refined(covfree.fedcof_oracle()), "got 'fedcof-oracle', which is exact"),
        (lambda: covfree.refined(covfree.fedcof(num_subsets=2)), "one mean for each class"),
        (lambda: covfree.refined(covfree.fedcof_components()), "one mean for each class"),
        (
            lambda: covfree.refined(covfree.fedcof(1.0, head="ridge", scatter="between")),
            "leaves nothing to refine",
        ),
        (lambda: covfree.refined(covfree.fedcof(), 0), "rounds: expected"),
        (lambda: covfree.refined(covfree.fedcof(), directions=0), "directions: expected"),
        (lambda: covfree.refined(covfree.fedcof(), shrinkage=-1.0), "expected .*, got -1.0"),
        (
            lambda: covfree.refined(covfree.fedcof(), shrinkage=covfree.oas()),
            r"need only the trace of the exact covariance; got oas\(\)$",
        ),
        (
            lambda: covfree.refined(covfree.fedcof(head=lambda covariance, moments: None)),
            "LDA, ridge or Student head",
        ),
    ],
)
def test_what_cannot_be_refined(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("head", ["lda", "ridge", "student"])
def test_an_estimate_is_that_of_the_matrix_and_the_rounds_that_are_run(head):
    method = covfree.fedcof(0.3, head=head)
    own = replace(method, system=lambda *state: method.system(*state).shifted(1.0))
    rounds = replace(method, rounds=(*method.rounds[:-1], replace(method.rounds[-1], fixed=False)))
    for other in (own, rounds, replace(method, system=None)):
        assert other.estimate is None
        with pytest.raises(ValueError, match="LDA, ridge or Student head of an estimated"):
            covfree.refined(other)
    for same in (
        jax.tree.map(lambda leaf: leaf, method),
        replace(method, name="mine"),
        replace(own, **{name: getattr(method, name) for name in ("system", "estimate")}),
    ):
        assert same.estimate == method.estimate
        assert covfree.refined(same).estimate is not None
    assert len(covfree.corrected(own).rounds) == len(covfree.corrected(method).rounds) + 2


def test_other_doors_say_what_they_expect():
    method = METHOD
    rows = covfree.summarise(method, *DATA)
    with pytest.raises(ValueError, match=r"rounds run over rows, got 'fedcof-refined', .* in 2 rounds; use"):
        covfree.accumulate(method, rows, num_classes=CLASSES)
    # The message is FedCOF's; the server cannot do without its clients afterwards.
    sent = covfree.client_message(method, *DATA[:2], num_classes=CLASSES)
    received = covfree.collect({"a": sent}, num_classes=CLASSES).message
    assert covfree.solve_message(covfree.fedcof(0.3), received, num_classes=CLASSES).weight.shape == (
        DIM,
        CLASSES,
    )
    with pytest.raises(ValueError, match="whose clients send a single message each, got 'fedcof-refined'"):
        covfree.solve_message(method, received, num_classes=CLASSES)


@pytest.mark.parametrize("cut", [2, *slow(1)])
def test_resumed_in_the_middle(cut, tmp_path):
    whole = in_rounds()
    in_rounds(stop=lambda history: len(history) == cut, checkpoint=tmp_path)
    done = in_rounds(checkpoint=tmp_path)
    chex.assert_trees_all_equal(done.result, whole.result)
    assert len(done.history) == 3


def test_where_cholesky_breaks_down_rounds_work_as_fit_does():
    """Features twice, no shrinkage: the estimate is singular."""
    data = np.concatenate([DATA[0][:, :3], DATA[0][:, :3]], 1), *DATA[1:]
    method = covfree.refined(covfree.fedcof(0.0), 2, 2, shrinkage=0.1)
    done, head = in_rounds(method, data), fit(method, data)
    assert done.stopped is None
    features = data[0].astype(np.float32)
    same = np.asarray(done.result(features).argmax(1) == head(features).argmax(1))
    assert same.mean() > 0.99


def test_nobody_in_a_round_is_not_taken_for_the_end():
    def run(*came):
        drawn = np.full((3, CLIENTS), -1)
        drawn[list(came)] = np.arange(CLIENTS)
        done = in_rounds(participation=drawn)
        return done.result, [record.get("error") for record in done.history]

    _, whole = run(0, 1, 2)
    _, late = run(0, 2)
    assert late[1] == 1.0
    assert late[2] == pytest.approx(whole[1], rel=1e-3)
    _, early = run(0, 1)
    assert early[1] == early[2] == pytest.approx(whole[1], rel=1e-6)
    nobody, _ = run(1, 2)
    chex.assert_tree_all_finite(nobody)


@pytest.mark.slow
def test_d_directions_are_exact_whatever_the_start_was():
    """One client and no shrinkage: the first head is 0, and no step leads anywhere."""
    data = DATA[0], DATA[1], np.zeros_like(DATA[2])
    exact = fit(covfree.fedcof_oracle(0.1), data)
    head = fit(covfree.refined(covfree.fedcof(0.0), 2, shrinkage=0.1), data)
    chex.assert_trees_all_close(head, exact, rtol=1e-3, atol=1e-3 * float(jnp.abs(exact.weight).max()))


def test_the_methods_own_rule_is_kept_where_it_can_be():
    assert covfree.refined(covfree.fedcof(covfree.relative(0.1))).params.shrinkage == covfree.relative(0.1)
    assert covfree.refined(covfree.fedcof()).params.shrinkage == covfree.pseudo_observations()
