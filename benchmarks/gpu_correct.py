"""What must hold on a GPU: outputs, scores and a step in mixed precision, against the CPU."""

from __future__ import annotations

import math

import torch
from gpu_measure import INFERENCE, Subject, TrainStep, allow_tf32, error_of, images
from gpu_record import Check

import precrop
from precrop.export.backends import BACKENDS, RunSettings

DENSITY = 0.2
STEPS = 3


def outputs_match(subject: Subject, device: str) -> Check:
    """The outputs on the device are those of the CPU, in float32 without TF32."""
    allow_tf32(False)
    batch = images(len(subject.reference), subject.input_shape)
    with BACKENDS["torch"].runner(subject.model, batch, RunSettings(torch.get_num_threads(), device)) as runner:
        runner.run()
        error = error_of(runner.output(), subject.reference)
    allowed = INFERENCE["fp32"][2]
    name = f"outputs of {subject.network} {subject.crop} in float32"
    return Check(name, error <= allowed, f"largest error {error:.1e} of the largest output, allowed {allowed:g}")


def scores_match(scorer: str, name: str, pixels: int, device: str) -> Check:
    """The densities that a scorer gives on the device are those of the CPU, but for weights at the threshold."""
    allow_tf32(False)
    torch.manual_seed(0)
    model = precrop.create_model(name)
    shape = (3, pixels, pixels)
    data = None
    if scorer == "snip":
        labels = torch.randint(10, (8,), generator=torch.Generator().manual_seed(0))
        data = [(torch.from_numpy(images(8, shape)), labels)]
    expected = precrop.score(model, scorer, DENSITY, data=data, input_shape=shape)
    got = precrop.score(model.to(device), scorer, DENSITY, data=data, input_shape=shape)
    # A few weights of a layer may change sides, and one of a small layer is a larger share.
    over = {layer: abs(got[layer] - share) - (1e-3 + 3 / expected.weights[layer]) for layer, share in expected.items()}
    worst = max(over, key=lambda layer: over[layer])
    seen = f"{worst} keeps {got[worst]:.5f} on {device} and {expected[worst]:.5f} on the CPU, the largest difference"
    return Check(f"densities of {scorer} at {DENSITY}", over[worst] <= 0, seen)


def amp_steps_are_finite(subject: Subject, device: str, batch: int) -> Check:
    """Steps in float16 with a scaler have a finite loss and leave finite weights, which have moved."""
    step = TrainStep(subject, "amp-fp16", batch, device)
    before = [p.detach().clone() for p in step.model.parameters()]
    step.settle_scale()
    losses = []
    for _ in range(STEPS):
        step.step()
        losses.append(step.loss.item())
    after = list(step.model.parameters())
    finite = all(map(math.isfinite, losses)) and all(bool(torch.isfinite(p).all()) for p in after)
    moved = any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
    listed = ", ".join(f"{loss:.3f}" for loss in losses)
    seen = f"losses {listed}; weights {'finite' if finite else 'not finite'}, {'moved' if moved else 'not moved'}"
    seen += f"; gradients scaled by {step.scaler.get_scale():g}"
    return Check(f"{STEPS} steps of {subject.network} {subject.crop} in float16", finite and moved, seen)
