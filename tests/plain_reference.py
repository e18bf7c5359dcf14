"""Second implementation of BiTTA as published, without dropout and hooks, for one network.

It is slow and literal on purpose. `python tests/plain_reference.py` writes
tests/golden/bitta_small.npz.
"""

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

GOLDEN = Path(__file__).parent / "golden" / "bitta_small.npz"
LR, MOMENTUM, DECAY = 0.05, 0.9, 5e-4
BATCH, BATCHES, ASKED, CAPACITY, EPOCHS = 10, 9, 3, 6, 2


class GoldenNet(nn.Module):
    """Two convolutions with BatchNorm, as in the shared golden runs."""

    def __init__(self, mean, std, *, tracked=True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8, track_running_stats=tracked)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16, track_running_stats=tracked)
        self.fc = nn.Linear(16, 10)
        shape = (1, 3, 1, 1)
        self.register_buffer("mean", torch.tensor(mean).float().view(shape), persistent=False)
        self.register_buffer("std", torch.tensor(std).float().view(shape), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1((x - self.mean) / self.std)).relu()
        x = self.bn2(self.conv2(x)).relu()
        return self.fc(x.mean((2, 3)))


def forward(net, weights, x, *, running=None):
    """Run the network. `running` has (mean, variance) by layer; without it the batch gives them."""

    def norm(y, name):
        if running is None:
            mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3), correction=0)
        else:
            mean, var = running[name]
        y = (y - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return y * weights[f"{name}.weight"][:, None, None] + weights[f"{name}.bias"][:, None, None]

    seen = {}
    y = F.conv2d((x - net.mean) / net.std, weights["conv1.weight"], padding=1)
    seen["bn1"] = y
    y = F.conv2d(norm(y, "bn1").relu(), weights["conv2.weight"], stride=2, padding=1)
    seen["bn2"] = y
    logits = norm(y, "bn2").relu().mean((2, 3)) @ weights["fc.weight"].T + weights["fc.bias"]
    return logits, seen


def trajectory(net, inputs, truth):
    """Serve, update statistics, ask about the least confident, learn from the memories."""
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    running = {name: (layer.running_mean.clone(), layer.running_var.clone())
               for name, layer in (("bn1", net.bn1), ("bn2", net.bn2))}  # fmt: skip
    velocity = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    memory = {True: [], False: []}
    served, queried, losses = [], [], []
    batches = zip(inputs.split(BATCH), truth.split(BATCH), strict=True)
    for number, (x, y) in enumerate(batches):
        served.append(forward(net, weights, x, running=running)[0].argmax(1))
        batch_logits, seen = forward(net, weights, x)
        for name, (mean, var) in running.items():
            running[name] = (
                0.7 * mean + 0.3 * seen[name].mean((0, 2, 3)),
                0.7 * var + 0.3 * seen[name].var((0, 2, 3), correction=1),
            )
        label = forward(net, weights, x, running=running)[0].argmax(1)
        confidence = batch_logits.softmax(1)[torch.arange(len(x)), label]
        asked = sorted(confidence.argsort()[:ASKED].tolist(), reverse=True)
        queried.append([number * BATCH + row for row in asked])
        for row in asked:
            verdict = bool(label[row] == y[row])
            memory[verdict] = [*memory[verdict], (x[row], label[row])][-CAPACITY:]
        rest = [row for row in range(len(x)) if row not in asked]
        for _ in range(EPOCHS):
            losses.append(learn(net, weights, velocity, memory, x[rest]))
    return torch.cat(served), queried, losses, weights, running


def learn(net, weights, velocity, memory, unlabelled):
    """Do one SGD update with Nesterov momentum on [correct; incorrect; unlabelled] samples."""
    leaves = {name: weight.requires_grad_() for name, weight in weights.items()}
    right, wrong = memory[True], memory[False]
    x = torch.stack([image for image, _ in right + wrong] + list(unlabelled))
    probs = forward(net, leaves, x)[0].softmax(1)
    double = probs.log_softmax(1)  # softmax of a softmax
    label = [int(y) for _, y in right + wrong]
    rows = range(len(right)), range(len(right), len(right) + len(wrong))
    feedback = torch.zeros(())
    if right:
        feedback = feedback - torch.stack([double[i, label[i]] for i in rows[0]]).mean()
    if wrong:
        feedback = feedback + torch.stack([double[i, label[i]] for i in rows[1]]).mean()
    # Without dropout every sample agrees with itself.
    agreement = -double[len(label) :].amax(1).mean()
    gradients = torch.autograd.grad(feedback + agreement, list(leaves.values()))
    with torch.no_grad():
        for (name, weight), gradient in zip(leaves.items(), gradients, strict=True):
            step = gradient + DECAY * weight
            velocity[name] = MOMENTUM * velocity[name] + step
            weights[name] = (weight - LR * (step + MOMENTUM * velocity[name])).detach()
    return feedback.item(), agreement.item()


def main() -> None:
    chance = torch.Generator().manual_seed(11)
    net = GoldenNet((0.5, 0.4, 0.6), (0.2, 0.3, 0.25))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=chance) * 0.4)
        for layer in (net.bn1, net.bn2):
            layer.running_mean.normal_(generator=chance)
            layer.running_var.uniform_(0.5, 2, generator=chance)
    inputs = torch.rand(BATCH * BATCHES, 3, 8, 8, generator=chance)
    truth = torch.randint(0, 10, (len(inputs),), generator=chance)
    source = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    # Make half of the answers correct, so that both memories fill.
    guesses = forward(net, source, inputs, running=None)[0].argmax(1)
    truth = torch.where(torch.rand(len(truth), generator=chance) < 0.5, guesses, truth)
    served, queried, losses, weights, running = trajectory(net, inputs, truth)
    final = {f"final.{name}": weight for name, weight in weights.items()}
    for name, (mean, var) in running.items():
        final |= {f"final.{name}.running_mean": mean, f"final.{name}.running_var": var}
    arrays = {"inputs": inputs, "truth": truth, "served": served, "mean": net.mean.flatten(),
              "std": net.std.flatten()}  # fmt: skip
    arrays |= {f"init.{name}": tensor for name, tensor in source.items()} | final
    GOLDEN.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        GOLDEN,
        queried=np.array(queried),
        losses=np.array(losses).reshape(BATCHES, EPOCHS, 2),
        **{name: tensor.numpy() for name, tensor in arrays.items()},
    )


if __name__ == "__main__":
    main()
