"""The held-out loss, defined once for training and for the check."""

import torch


@torch.no_grad()
def mean_loss(model, sequences):
    """Mean nats per predicted token, and how many tokens were predicted."""
    total, count = 0.0, 0
    for ids in sequences:
        ids = torch.tensor([ids])
        logits = model(input_ids=ids).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += ids.shape[1] - 1
    return total / count, count
