import pytest

torch = pytest.importorskip("torch")

from models import GPT, ResNet, SmallCNN  # noqa: E402


def weights(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("model", "inputs", "scores"),
    [
        (SmallCNN(8, 10), torch.rand(3, 1, 8, 8), (3, 10)),
        (ResNet(10), torch.rand(2, 1, 32, 32), (2, 10)),
        (GPT(72, 64), torch.randint(0, 72, (2, 64)), (2, 64, 72)),
    ],
)
def test_a_model_gives_a_score_to_every_class_and_a_gradient_to_every_weight(model, inputs, scores) -> None:
    result = model(inputs)
    assert result.shape == scores
    result.logsumexp(-1).sum().backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []


def test_the_models_have_the_guides_parameter_counts() -> None:
    assert (weights(SmallCNN(8, 10)), weights(ResNet(10)), weights(GPT(72, 64))) == (38282, 701178, 819968)


def test_gpt_sees_no_character_that_comes_later() -> None:
    model = GPT(5, 16, width=8, layers=2).eval()
    book = torch.randint(0, 5, (1, 16))
    other = book.clone()
    other[0, 9] = (other[0, 9] + 1) % 5
    same = torch.isclose(model(book), model(other)).all(dim=-1)[0]
    assert same.tolist() == [True] * 9 + [False] * 7


def test_resnet_gives_an_image_the_same_output_in_any_batch() -> None:
    model, images = ResNet(10, width=8), torch.rand(4, 1, 16, 16)
    torch.testing.assert_close(model(images)[:1], model(images[:1]))
