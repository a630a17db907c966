"""Muon: momentum whose steps are made orthogonal, for the matrices of a model."""

import torch

# Coefficients of the quintic Newton-Schulz iteration by Keller Jordan.
A, B, C = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
# Scales the steps to about the size of AdamW's.
SCALE = 0.2


def orthogonal(matrices):
    """Moves the singular values of a stack of matrices close to one."""
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.mT
    x = wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x if matrices.shape[-2] <= matrices.shape[-1] else x.mT


class Muon(torch.optim.Optimizer):
    """Handles all matrices of one shape as one stack, which makes it quick enough on a CPU."""

    def __init__(self, matrices, lr, momentum, weight_decay):
        shapes = {}
        for matrix in matrices:
            shapes.setdefault(matrix.shape, []).append(matrix)
        groups = [{"params": group} for group in shapes.values()]
        super().__init__(groups, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            self.step_group(group)

    def step_group(self, group):
        stack = torch.stack([matrix.grad for matrix in group["params"]])
        state = self.state[group["params"][0]]
        velocity = state.setdefault("velocity", torch.zeros_like(stack))
        velocity.lerp_(stack, 1 - group["momentum"])
        steps = orthogonal(stack.lerp(velocity, group["momentum"]))
        size = SCALE * max(stack.shape[-2:]) ** 0.5
        for matrix, step in zip(group["params"], steps):
            matrix.mul_(1 - group["lr"] * group["weight_decay"])
            matrix.sub_(step, alpha=group["lr"] * size)
