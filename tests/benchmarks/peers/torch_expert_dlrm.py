#!/usr/bin/env python3
"""DLRM as someone who knows PyTorch well writes it for a CPU, in one process.

    torch_expert_dlrm.py LOG [--gemm onednn|mkl] [--precision fp32|bf16] [--no-compile]

- The 26 tables are one tensor. A step gathers a batch's distinct rows once, and updates them in place
  with an Adagrad of gathers and scatters, so it touches no other row and builds no sparse tensor.
- MLPs, interaction and loss go through torch.compile; the MLPs' Adagrad is the fused one.
- Products are oneDNN's, which PyTorch carries but does not use for float32: on AMD processors they
  are about twice as fast as MKL's.
"""
from typing import Optional

import click_log
import numpy as np
import torch
from torch import nn


class Tables:
    """All tables in one tensor, with their own Adagrad."""

    def __init__(self, cardinalities, dim, lr, init):
        self.first_rows = torch.from_numpy(np.r_[0, np.cumsum(cardinalities)[:-1]])
        self.weights = torch.empty(sum(cardinalities), dim).uniform_(-init, init)
        # fill_ and not zeros(), whose pages would fault in one by one while training.
        self.squares = torch.empty_like(self.weights).fill_(0)
        self.lr = lr

    def pull(self, sparse):
        """[batch, tables] ids -> [batch, tables, dim] vectors, which want a gradient."""
        self.keys, self.places = torch.unique((sparse + self.first_rows).view(-1), return_inverse=True)
        self.rows = self.weights.index_select(0, self.keys)
        return self.rows.index_select(0, self.places).view(*sparse.shape, -1).requires_grad_()

    def push(self, vectors):
        gradients = vectors.grad.view(-1, self.rows.shape[1])
        sums = torch.zeros_like(self.rows).index_add_(0, self.places, gradients)
        squares = self.squares.index_select(0, self.keys).addcmul_(sums, sums)
        self.squares.index_copy_(0, self.keys, squares)
        self.rows.addcdiv_(sums, squares.sqrt_().add_(1e-10), value=-self.lr)
        self.weights.index_copy_(0, self.keys, self.rows)


class Pairs(torch.autograd.Function):
    """Picks the pairs i > j out of the products, by a gather whose gradient is a gather, too."""

    @staticmethod
    def forward(ctx, products, take, back):
        ctx.save_for_backward(back)
        return products.index_select(1, take)

    @staticmethod
    def backward(ctx, gradients):
        padded = nn.functional.pad(gradients, (0, 1))
        return padded.index_select(1, ctx.saved_tensors[0]), None, None


@torch.library.custom_op("dlrm::onednn_linear", mutates_args=())
def onednn_linear(x: torch.Tensor, w: torch.Tensor, b: Optional[torch.Tensor]) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, w, b, "none", [], "")


@onednn_linear.register_fake
def _(x, w, b):
    return x.new_empty(x.shape[0], w.shape[0])


class OneDnnProduct(torch.autograd.Function):
    """A linear layer in the precision of x; its parameters and their gradients are float32."""

    @staticmethod
    def forward(ctx, x, w, b):
        w = w.to(x.dtype)
        ctx.save_for_backward(x, w)
        return onednn_linear(x, w, b.to(x.dtype))

    @staticmethod
    def backward(ctx, gradients):
        x, w = ctx.saved_tensors
        gradients = gradients.contiguous()
        of_x = onednn_linear(gradients, w.t(), None) if ctx.needs_input_grad[0] else None
        of_w = onednn_linear(gradients.t(), x.t(), None).float()
        return of_x, of_w, gradients.sum(0, dtype=torch.float32)


class OneDnnLinear(nn.Linear):
    def forward(self, x):
        return OneDnnProduct.apply(x, self.weight, self.bias)


class Mlps(nn.Module):
    def __init__(self, args, log):
        super().__init__()
        vectors = len(log.cardinalities) + 1
        rows, columns = np.tril_indices(vectors, -1)
        take = rows * vectors + columns
        back = np.full(vectors * vectors, len(take))
        back[take] = np.arange(len(take))
        self.register_buffer("take", torch.from_numpy(take))
        self.register_buffer("back", torch.from_numpy(back))
        self.type = torch.bfloat16 if args.precision == "bf16" else torch.float32
        linear = OneDnnLinear if args.gemm == "onednn" else nn.Linear
        self.bottom, self.top = (nn.ModuleList(linear(inputs, outputs) for inputs, outputs in sizes)
                                 for sizes in click_log.layer_sizes(args, log))
        for layer in [*self.bottom, *self.top]:
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -layer.in_features ** -0.5, layer.in_features ** -0.5)

    def forward(self, x, vectors):
        x, vectors = x.to(self.type), vectors.to(self.type)
        for layer in self.bottom:
            x = layer(x).relu()
        z = torch.cat([x.unsqueeze(1), vectors], 1)
        products = torch.bmm(z, z.transpose(1, 2)).flatten(1)
        x = torch.cat([x, Pairs.apply(products, self.take, self.back)], 1)
        for layer in self.top[:-1]:
            x = layer(x).relu()
        return self.top[-1](x).squeeze(1).float()


def main():
    parser = click_log.parser(__doc__)
    parser.add_argument("--gemm", choices=["onednn", "mkl"], default="onednn")
    click_log.add_precision(parser)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    log = click_log.ClickLog(args.log)
    tables = Tables(log.cardinalities, args.dim, args.lr, args.init)
    mlps = Mlps(args, log)
    optimizer = torch.optim.Adagrad(mlps.parameters(), lr=args.lr, fused=True)

    def loss_of(dense, vectors, labels):
        return nn.functional.binary_cross_entropy_with_logits(mlps(dense, vectors), labels)

    if not args.no_compile:
        loss_of = torch.compile(loss_of, dynamic=False)
    speed = click_log.Speed(args.batch)
    for dense, sparse, labels in log.training_batches(args.batch, args.steps):
        vectors = tables.pull(torch.from_numpy(sparse))
        optimizer.zero_grad()
        loss = loss_of(torch.from_numpy(dense), vectors, torch.from_numpy(labels))
        (len(labels) / args.batch * loss).backward()  # Every sample weighs the same, also in a short batch.
        optimizer.step()
        tables.push(vectors)
        speed.step()
    with torch.no_grad():
        click_log.report(args, log, f"torch={torch.__version__}", speed.median(), lambda dense, sparse:
                         mlps(torch.from_numpy(dense), tables.pull(torch.from_numpy(sparse))).numpy())


if __name__ == "__main__":
    main()
