#!/usr/bin/env python3
"""DLRM with its tables on a server, by hand over torch.distributed.rpc: two processes on this machine.

    torch_rpc_dlrm.py LOG [--style pullpush|autograd] [--no-compile]

- pullpush: the trainer makes a batch's rows distinct, pulls each once, and pushes one summed gradient for each while
  it begins the next batch; the server has one fused table and updates it in place. The model is the expert's.
- autograd: as PyTorch's tutorial has it. The server has nn.EmbeddingBag(sparse=True) a table, and distributed autograd
  and DistributedOptimizer(Adagrad) go over remote tables and local MLPs.
"""
import os
import socket

import click_log
import numpy as np
import torch
import torch.distributed.autograd as dist_autograd
from torch import nn
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer
from torch_expert_dlrm import Mlps

PATIENCE_S = 300
binary_cross_entropy = nn.functional.binary_cross_entropy_with_logits


class Server:
    """Lives in the server's process."""

    def __init__(self, args, cardinalities):
        self.args = args
        if args.style == "autograd":
            self.tables = nn.ModuleList(nn.EmbeddingBag(rows, args.dim, mode="sum", sparse=True)
                                        for rows in cardinalities)
            for table in self.tables:
                nn.init.uniform_(table.weight, -args.init, args.init)
            return
        self.weights = torch.empty(sum(cardinalities), args.dim).uniform_(-args.init, args.init)
        self.squares = torch.empty_like(self.weights).fill_(0)

    def is_ready(self):
        return True

    def lookup(self, sparse):
        return torch.stack([table(sparse[:, i:i + 1]) for i, table in enumerate(self.tables)], 1)

    def parameters(self):
        return [rpc.RRef(parameter) for parameter in self.tables.parameters()]

    def pull(self, keys):
        return self.weights.index_select(0, keys)

    def push(self, keys, gradients):
        squares = self.squares.index_select(0, keys).addcmul_(gradients, gradients)
        self.squares.index_copy_(0, keys, squares)
        rows = self.weights.index_select(0, keys)
        self.weights.index_copy_(0, keys, rows.addcdiv_(gradients, squares.sqrt_().add_(1e-10), value=-self.args.lr))


class PullPush:
    def __init__(self, args, log, server, mlps):
        self.server, self.mlps = server, mlps
        self.first_rows = torch.from_numpy(np.r_[0, np.cumsum(log.cardinalities)[:-1]])
        self.optimizer = torch.optim.Adagrad(mlps.parameters(), lr=args.lr, fused=True)
        self.pushed = None  # The last push; it may be on its way still.
        self.loss_of = lambda dense, vectors, labels: binary_cross_entropy(mlps(dense, vectors), labels)
        if not args.no_compile:
            self.loss_of = torch.compile(self.loss_of, dynamic=False)

    def pull(self, sparse):
        keys, places = torch.unique((sparse + self.first_rows).view(-1), return_inverse=True)
        if self.pushed is not None:
            self.pushed.wait()
        rows = self.server.rpc_sync().pull(keys)
        return keys, places, rows, rows.index_select(0, places).view(*sparse.shape, -1)

    def step(self, dense, sparse, labels, share):
        keys, places, rows, vectors = self.pull(sparse)
        vectors.requires_grad_()
        self.optimizer.zero_grad()
        (share * self.loss_of(dense, vectors, labels)).backward()
        sums = torch.zeros_like(rows).index_add_(0, places, vectors.grad.view(-1, rows.shape[1]))
        self.pushed = self.server.rpc_async().push(keys, sums)
        self.optimizer.step()

    def score(self, dense, sparse):
        return self.mlps(dense, self.pull(sparse)[3])


class Autograd:
    def __init__(self, args, _, server, mlps):
        self.server, self.mlps = server, mlps
        parameters = server.rpc_sync(timeout=PATIENCE_S).parameters()
        self.optimizer = DistributedOptimizer(torch.optim.Adagrad,
                                              parameters + [rpc.RRef(each) for each in mlps.parameters()], lr=args.lr)

    def step(self, dense, sparse, labels, share):
        with dist_autograd.context() as context:
            loss = share * binary_cross_entropy(self.score(dense, sparse), labels)
            dist_autograd.backward(context, [loss])
            self.optimizer.step(context)

    def score(self, dense, sparse):
        return self.mlps(dense, self.server.rpc_sync().lookup(sparse))


def train(args):
    torch.set_num_threads(args.threads)
    log = click_log.ClickLog(args.log)
    server = rpc.remote("server", Server, args=(args, log.cardinalities), timeout=PATIENCE_S)
    server.rpc_sync(timeout=PATIENCE_S).is_ready()
    trainer = (Autograd if args.style == "autograd" else PullPush)(args, log, server, Mlps(args, log))
    speed = click_log.Speed(args.batch)
    for dense, sparse, labels in log.training_batches(args.batch, args.steps):
        trainer.step(torch.from_numpy(dense), torch.from_numpy(sparse), torch.from_numpy(labels),
                     len(labels) / args.batch)
        speed.step()
    with torch.no_grad():
        click_log.report(args, log, f"torch={torch.__version__}", speed.median(), lambda dense, sparse:
                         trainer.score(torch.from_numpy(dense), torch.from_numpy(sparse)).numpy())


def run_process(rank, args, port):
    torch.manual_seed(args.seed)
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=4, init_method=f"tcp://127.0.0.1:{port}",
                                              rpc_timeout=PATIENCE_S)
    if rank == 1:
        torch.set_num_threads(1)
    rpc.init_rpc(["trainer", "server"][rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        train(args)
    rpc.shutdown()


def main():
    parser = click_log.parser(__doc__)
    parser.add_argument("--style", choices=["pullpush", "autograd"], default="pullpush")
    parser.add_argument("--gemm", choices=["onednn", "mkl"], default="mkl")
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(run_process, args=(args, port), nprocs=2)


if __name__ == "__main__":
    main()
