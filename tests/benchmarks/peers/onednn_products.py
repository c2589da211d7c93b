#!/usr/bin/env python3
"""How fast oneDNN, as PyTorch carries it, computes the matrix products of a DLRM's step: forward and both backward.

    onednn_products.py LOG

Prints the multiplications and additions of a sample, and those of a second in float32 and in bfloat16: the least time of
each product over the repeats, added up over the step.
"""
import time

import click_log
import torch

REPEATS = 20
NAMES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def products(args, log):
    """(x [m, k], w [n, k]) of each product x times w transposed, as torch_expert_dlrm.py has them."""
    bottom, top = click_log.layer_sizes(args, log)
    for at, (inputs, outputs) in enumerate([*bottom, *top]):
        x, w, gradients = (torch.randn(shape) for shape in
                           ((args.batch, inputs), (outputs, inputs), (args.batch, outputs)))
        yield x, w
        yield gradients.t(), x.t()
        if at > 0 or not bottom:  # The numbers of a sample want no gradient.
            yield gradients, w.t()


def least_seconds(x, w):
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        torch.ops.mkldnn._linear_pointwise(x, w, None, "none", [], "")
        times.append(time.perf_counter() - begin)
    return min(times)


def main():
    args = click_log.parser(__doc__).parse_args()
    torch.set_num_threads(args.threads)
    step = list(products(args, click_log.ClickLog(args.log)))
    flops = sum(2 * x.shape[0] * w.shape[0] * x.shape[1] for x, w in step)
    line = f"mflop_per_sample={flops / args.batch * 1e-6:.3f}"
    for name, kind in NAMES.items():
        seconds = sum(least_seconds(x.to(kind), w.to(kind)) for x, w in step)
        line += f" {name}={flops / seconds * 1e-9:.1f}"
    print(line + f" torch={torch.__version__}")


if __name__ == "__main__":
    main()
