"""The models: the sizes that the paper states, what they accept, and models of the user's own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from fedwmsam.errors import InputError
from fedwmsam.models import MODELS, model_factory
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task

COLOUR = (3, 32, 32)
GREY = (1, 28, 28)
TINY = (3, 64, 64)
IMAGE_MODELS = ("mlp", "linear", "lenet", "cnn", "resnet18")


def make(name: str, shape: tuple[int, ...] = COLOUR, classes: int = 10) -> nn.Module:
    return model_factory(name, shape, classes)()


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("mlp", GREY, 10, 199_210),
        ("linear", GREY, 10, 7_850),
        ("lenet", COLOUR, 10, 797_962),
        ("cnn", COLOUR, 10, 100_138),
        ("resnet18", COLOUR, 10, 11_181_642),
        ("resnet18", COLOUR, 100, 11_227_812),
        ("resnet34", COLOUR, 10, 21_289_802),
        ("resnet50", COLOUR, 10, 23_528_522),
        ("resnet18-cifar", COLOUR, 10, 11_181_642 - 3 * 64 * (7 * 7 - 3 * 3)),
    ],
)
def test_models_have_the_stated_number_of_parameters(name, shape, classes, parameters):
    with torch.device("meta"):  # counts without allocating or drawing tens of millions of numbers
        assert count_parameters(make(name, shape, classes)) == parameters


@pytest.mark.parametrize(
    ("name", "tensors"), [("resnet18", 62), ("resnet34", 110), ("resnet50", 161)]
)
def test_residual_networks_have_the_stated_number_of_tensors(name, tensors):
    with torch.device("meta"):
        assert len(list(make(name).parameters())) == tensors


@pytest.mark.parametrize("shape", [COLOUR, GREY, TINY])
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_image_models_give_one_score_per_class(name, shape):
    scores = make(name, shape, 7)(torch.randn(2, *shape))
    assert scores.shape == (2, 7) and scores.isfinite().all()


def test_the_small_network_takes_the_smallest_built_in_images():
    assert make("cnn", (1, 8, 8))(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_lenet_takes_images_that_are_not_square():
    assert make("lenet", (1, 16, 40))(torch.randn(2, 1, 16, 40)).shape == (2, 10)


@pytest.mark.parametrize("shape", [COLOUR, GREY, TINY])
@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("resnet")])
def test_all_residual_networks_fit_all_image_sizes(name, shape):
    with torch.device("meta"):  # shapes without the arithmetic
        assert make(name, shape, 7)(torch.empty(2, *shape)).shape == (2, 7)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("resnet")])
def test_residual_networks_normalise_by_two_groups_and_never_by_batch(name):
    with torch.device("meta"):
        modules = list(make(name).modules())
    assert not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in modules)
    norms = [module for module in modules if isinstance(module, nn.GroupNorm)]
    convolutions = [module for module in modules if isinstance(module, nn.Conv2d)]
    assert {norm.num_groups for norm in norms} == {2} and len(norms) == len(convolutions)


def test_resnet18_starts_where_the_published_one_does():
    torch.manual_seed(0)
    model = make("resnet18")
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert weights.norm().item() == pytest.approx(112, abs=1)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # Kaiming: variance 2 / (outputs × kernel²)
            height, width = module.kernel_size
            expected = (2 / (module.out_channels * height * width)) ** 0.5
            assert module.weight.std().item() == pytest.approx(expected, rel=0.05)
        if isinstance(module, nn.GroupNorm):
            assert (module.weight == 1).all() and (module.bias == 0).all()


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("resnet18", [8, 4, 2, 1]), ("resnet18-cifar", [32, 16, 8, 4]), ("resnet50", [8, 4, 2, 1])],
)
def test_the_stem_sets_the_resolution_of_the_stages(name, sizes):
    resolutions = []
    with torch.device("meta"):
        x = torch.empty(2, *COLOUR)
        for module in make(name).children():
            x = module(x)
            if isinstance(module, nn.Sequential):
                resolutions.append(x.shape[-1])
    assert resolutions == sizes


@pytest.mark.parametrize("name", [*IMAGE_MODELS, "char"])
def test_every_parameter_gets_a_gradient(name):
    shape = (20,) if name == "char" else COLOUR
    torch.manual_seed(0)
    model = make(name, shape)
    inputs = torch.randint(10, (2, *shape)) if name == "char" else torch.randn(2, *shape)
    nn.functional.cross_entropy(model(inputs), torch.tensor([1, 2])).backward()
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in model.parameters()
    )


@pytest.mark.parametrize("context", [5, 64])
def test_the_character_model_scores_the_next_character(context):
    scores = make("char", (context,), 65)(torch.randint(65, (3, context)))
    assert scores.shape == (3, 65)


def test_the_character_model_learns_which_character_follows():
    torch.manual_seed(0)
    text = torch.arange(400) % 7
    inputs = text.unfold(0, 10, 1)[:-1]
    targets = text[10:]
    model = make("char", (10,), 7)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimiser.step()
    assert (model(inputs).argmax(1) == targets).all()


def check_seed(factory: Callable[[], nn.Module]) -> None:
    """Check that equal seeds give equal initial weights, and other seeds give other ones."""
    tasks = [Task(factory, OBJECTIVES["classification"], seed=seed) for seed in (1, 1, 2)]
    first, again, other = (task.initial_weights for task in tasks)
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("name", ["cnn", "lenet", "char"])
def test_a_seed_fixes_the_initial_weights(name):
    check_seed(model_factory(name, (20,) if name == "char" else COLOUR, 10))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lenet", (1, 8, 8), "at least 16 × 16, not 8 × 8"),
        ("cnn", (1, 32, 6), "at least 7 × 7, not 32 × 6"),
        ("resnet18", (784,), r"not inputs of shape \(784,\)"),
        ("char", (1, 28, 28), r"not inputs of shape \(1, 28, 28\)"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(name, shape, message):
    with pytest.raises(InputError, match=message):
        make(name, shape)


def test_the_smallest_images_that_lenet_is_said_to_take_work():
    assert make("lenet", (1, 16, 16))(torch.randn(2, 1, 16, 16)).shape == (2, 10)


def test_the_smallest_images_that_the_small_network_is_said_to_take_work():
    assert make("cnn", (1, 7, 7))(torch.randn(2, 1, 7, 7)).shape == (2, 10)


def test_an_unknown_name_is_answered_with_the_nearest_and_with_how_to_name_ones_own():
    with pytest.raises(InputError, match=r"Did you mean 'resnet18'.*package\.module:function"):
        model_factory("resnet-18", COLOUR, 10)


# Models of the user's own

NETS = """
from torch import nn
def both(shape, classes): return nn.Linear(shape[0], classes)
def none(): return nn.Linear(4, 3)
def one(size): return nn.Linear(size, 3)
def optional(shape, classes, *, bias=False): return nn.Linear(shape[0], classes, bias=bias)
def text(): return "a network"
def fails(shape, classes): raise RuntimeError("no\\nluck")
class Net(nn.Sequential):
    def __init__(self): super().__init__(nn.Linear(4, 3))
def late(shape, classes):
    from nets_helper import width
    return nn.Linear(width, classes)
made = nn.Linear(4, 3)
number = 5
"""


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a current folder with the user's modules, which Python forgets after the test."""
    (tmp_path / "nets.py").write_text(NETS)
    (tmp_path / "nets_helper.py").write_text("width = 4")
    (tmp_path / "nets_broken.py").write_text("1 / 0")
    (tmp_path / "nets_leaving.py").write_text("raise SystemExit(3)")
    (tmp_path / "nets_needy.py").write_text("import a_package_nobody_has")
    (tmp_path / "nets_package").mkdir()
    (tmp_path / "nets_package" / "inner.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0].startswith("nets")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name",
    ["nets:both", "nets:none", "nets:Net", "nets:optional", "nets:late", "nets_package.inner:both"],
)
def test_a_model_is_found_by_its_import_path(nets, name):
    path = list(sys.path)
    model = model_factory(name, (4,), 3)()
    assert isinstance(model, nn.Module) and model(torch.zeros(2, 4)).shape == (2, 3)
    assert sys.path == path


def test_a_seed_fixes_the_initial_weights_of_the_users_model(nets):
    check_seed(model_factory("nets:both", (4,), 3))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere_at_all:make", "module 'nowhere_at_all' .* neither in .* nor installed"),
        ("nets_package.absent:make", "module 'nets_package.absent' .* neither in .* nor installed"),
        ("nets:bath", "Unknown function in the module 'nets' 'bath'. Did you mean 'both'"),
        ("nets:number", "is a int, expected a function or class"),
        ("nets:made", "is a Linear, expected a function or class"),
        ("nets:one", r"must take \(shape, classes\) or no arguments"),
        ("nets:text", r"must return a torch.nn.Module, not str"),
        ("nets:fails", r"failed when called with \(\(4,\), 3\) \(RuntimeError: no luck\)"),
        ("nets_broken:make", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
        ("nets_leaving:make", r"cannot be imported \(SystemExit: 3\)"),
        ("nets_needy:make", "cannot be imported .*a_package_nobody_has"),
        ("nets:", "expected 'package.module:function'"),
        (":make", "expected 'package.module:function'"),
        ("./nets.py:make", "expected 'package.module:function'"),
    ],
)
def test_what_is_wrong_with_an_import_path_is_said_in_one_line(nets, name, message):
    with pytest.raises(InputError, match=message) as caught:
        model_factory(name, (4,), 3)()
    assert "\n" not in str(caught.value)
