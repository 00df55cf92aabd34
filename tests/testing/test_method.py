"""Every law of `check_method` can be broken, and says so; the rest of the method is sound."""

import re
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import covfree
from covfree.methods import Method, Round, send_class_means
from covfree.testing import check_method
from covfree.testing.method import METHOD_LAWS

# The laws are of values, and what is checked here is broken.
pytestmark = pytest.mark.usefixtures("untyped")


def moments_phase(params, totals, rows, num_classes):
    return covfree.first_moments(rows, num_classes)


def means_head(params, system, moments):
    """The nearest class mean by distance: −½‖x − μ‖² without ‖x‖²."""
    mean = moments.mean
    bias = jnp.where(moments.present, -0.5 * jnp.square(mean).sum(1) * (1 + params), 0)
    return covfree.LinearHead(mean.T, bias, moments.present.astype(mean.dtype))


MEANS = send_class_means()
SOUND = Method(0.0, "distance", MEANS, (Round(moments_phase),), None, means_head)


def check(method, *laws, **options):
    """Only some laws: one is enough for what breaks it."""
    others = {law.__name__: "another test's" for law in METHOD_LAWS if law.__name__ not in laws}
    check_method(method, exclude=others, **options)


def broken_head(change):
    """A head function after which something is changed."""

    def head(params, system, moments):
        return change(means_head(params, system, moments), moments)

    return replace(SOUND, head=head)


class Unequal:
    """Class means, told apart by identity."""

    def __call__(self, *arguments):
        return MEANS.make(*arguments)

    def __deepcopy__(self, memo):
        return type(self)()


def by_place(features, labels, clients, sizes, key):
    """The later examples count for more."""
    growing = features * jnp.linspace(1, 2, len(labels))[:, None].astype(features.dtype)
    return MEANS.make(growing, labels, clients, sizes, key)


def by_number(features, labels, clients, sizes, key):
    """Clients of large numbers count for more."""
    grown = features * (1 + jnp.asarray(clients)[:, None].astype(features.dtype))
    return MEANS.make(grown, labels, clients, sizes, key)


def centred(features, labels, clients, sizes, key):
    """Padding counts in the mean that is taken off."""
    centred = features - jnp.nan_to_num(features).mean(0)[None, :]
    return MEANS.make(centred, labels, clients, sizes, key)


def spoiling(labels, clients):
    """Writes into the caller's array."""
    if len(clients):
        clients[0] += 1
    return MEANS.sizes(labels, clients)


def other_message(params, features, labels, num_classes, key):
    """A client alone makes something else of its examples."""
    assert MEANS.message is not None
    return MEANS.message(params, 2 * features, labels, num_classes, key)


def largest_phase(params, totals, rows, num_classes):
    """Not a sum over rows."""
    moments = covfree.first_moments(rows, num_classes)
    return moments, jnp.where(jnp.asarray(rows.count) > 0, jnp.abs(rows.mean).max(1), 0).max()


def over_largest(params, system, totals):
    moments, largest = totals
    head = means_head(params, system, moments)
    return replace(head, bias=head.bias * largest)


def stopped(params, system, moments):
    return jax.tree.map(jax.lax.stop_gradient, means_head(params, system, moments))


def on_values(head, moments):
    """A choice by a value, which jit cannot see."""
    return head if moments.count[0] > 3 else replace(head, bias=2 * head.bias)


def one_at_a_time(head, moments):
    """A call to the host for which nobody said what it does under vmap."""
    bias = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct((6,), np.float32), head.bias)
    return replace(head, bias=bias)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class WordyHead(covfree.LinearHead):
    """Its scores have classes first."""

    def __call__(self, features):
        return covfree.LinearHead.__call__(self, features).T


BROKEN = {
    "pytree": replace(SOUND, params=np.float32(np.nan)),
    "scores": broken_head(lambda head, moments: WordyHead(**vars(head))),
    "pure": replace(SOUND, summary=replace(MEANS, sizes=spoiling)),
    "jit": broken_head(on_values),
    "padding": replace(SOUND, summary=replace(MEANS, make=centred)),
    "vmap": broken_head(one_at_a_time),
    "order": replace(SOUND, summary=replace(MEANS, make=by_place)),
    "clients": replace(SOUND, summary=replace(MEANS, make=by_number)),
    "classes": broken_head(lambda head, _: replace(head, bias=head.bias + jnp.arange(6.0))),
    "finite": broken_head(lambda head, _: replace(head, present=None)),
    "learns": broken_head(lambda head, _: replace(head, weight=-head.weight)),
    "scaling": broken_head(lambda head, moments: replace(head, bias=head.bias + 5.0 * moments.num_rows)),
    "splitting": replace(SOUND, rounds=(Round(largest_phase),), head=over_largest),
    "messages": replace(SOUND, summary=replace(MEANS, message=other_message)),
    "gradients": replace(SOUND, head=stopped),
}


def test_a_sound_method_passes():
    def formula(features, labels, clients, num_classes):
        means = np.array(
            [features[labels == c].mean(0) if (labels == c).any() else features[0] for c in range(6)]
        )
        present = np.isin(np.arange(6), labels)
        return lambda x: np.where(present, x @ means.T - 0.5 * (means**2).sum(1), -np.inf)

    check_method(SOUND, reference=formula)
    with pytest.raises(AssertionError, match=r"breaks the law 'reference'"):
        check(replace(SOUND, params=0.1), "reference", reference=formula)


@pytest.mark.parametrize("law", BROKEN)
def test_what_breaks_a_law_is_caught(law):
    says = next(one.__doc__ for one in METHOD_LAWS if one.__name__ == law)
    expected = f"method 'distance' breaks the law '{law}'. {says}"
    with pytest.raises(AssertionError, match=re.escape(expected)):
        check(BROKEN[law], law)


def test_all_broken_laws_are_told_and_what_is_found_twice_is_told_once():
    both = broken_head(lambda head, _: replace(head, weight=-head.weight, present=None))
    with pytest.raises(AssertionError) as caught:
        check(both, "scores", "finite", "learns")
    found = str(caught.value)
    assert re.findall("breaks the law '(.*?)'. [FSW]", found) == ["finite", "learns"]
    assert "that differ;\nmethod 'distance' breaks" in found

    def failing(params, system, moments):
        raise RuntimeError("no head")

    with pytest.raises(AssertionError) as caught:
        check(replace(SOUND, head=failing), "scores", "pure", "learns")
    *laws, error = str(caught.value).split("\n")
    assert [line.split("'")[3] for line in laws] == ["scores", "pure", "learns"]
    assert re.fullmatch(r"raised RuntimeError: no head \(test_method.py, line \d+, in failing\)", error)
    assert str(caught.value.__cause__) == "no head"


def test_rounds_over_examples_have_no_rows_to_split():
    check(covfree.corrected(covfree.fedcof(), 2), "splitting")


def test_padding_is_blamed_for_what_padding_does():
    """Compiled and called directly it does the same, if both are given padding."""
    check(BROKEN["padding"], "jit")


def test_records_that_compile_anew_are_caught():
    with pytest.raises(AssertionError, match=r"breaks the law 'pytree'.*\n.*a copy has another structure"):
        check(replace(SOUND, summary=replace(MEANS, make=Unequal())), "pytree")
    with pytest.raises(AssertionError, match=r"breaks the law 'trace'.*\n.*traced 2 times"):
        check(replace(SOUND, summary=replace(MEANS, make=Unequal())), "trace")


def test_every_law_has_something_that_breaks_it():
    assert {law.__name__ for law in METHOD_LAWS} == {*BROKEN, "trace", "reference"}


@pytest.mark.parametrize(
    ("exclude", "text"),
    [
        ({"speed": "slow"}, r"exclude: expected laws among \['pytree', .*got 'speed'"),
        ({"order": ""}, "exclude: expected the reason why 'order' is no law here, got ''"),
    ],
)
def test_laws_are_left_out_with_a_reason(exclude, text):
    with pytest.raises(ValueError, match=text):
        check_method(SOUND, exclude=exclude)


def test_only_methods_are_checked():
    with pytest.raises(TypeError, match="got fedcof, which makes one: call it"):
        check_method(covfree.fedcof)
    with pytest.raises(TypeError, match=r"got the name 'fedcof'; covfree\.methods.registry"):
        check_method("fedcof")
