#!/usr/bin/env python3
"""DLRM in plain PyTorch, one process: nn.EmbeddingBag(sparse=True), nn.Linear, torch.optim.Adagrad.

    torch_dlrm.py LOG [--mode cpu|hybrid|gpu] [--precision fp32|bf16]

cpu     tables and MLPs on the CPU
hybrid  tables on the CPU, MLPs on the GPU
gpu     everything in the GPU's memory

bf16 is torch.autocast's: products in bfloat16, tables, parameters and loss in float32.
"""
import click_log
import torch
from torch import nn


def mlp(sizes, relu_at_end):
    layers = []
    for i, (inputs, outputs) in enumerate(sizes):
        layers.append(nn.Linear(inputs, outputs))
        if i + 1 < len(sizes) or relu_at_end:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def uniform(tensor, bound):
    nn.init.uniform_(tensor, -bound, bound)


class Dlrm(nn.Module):
    def __init__(self, args, log, table_device, mlp_device):
        super().__init__()
        self.table_device, self.mlp_device = table_device, mlp_device
        self.tables = nn.ModuleList(
            nn.EmbeddingBag.from_pretrained(torch.empty(rows, args.dim, device=table_device),
                                            freeze=False, mode="sum", sparse=True)
            for rows in log.cardinalities)
        bottom, top = click_log.layer_sizes(args, log)
        self.bottom = mlp(bottom, True).to(mlp_device)
        self.top = mlp(top, False).to(mlp_device)
        for table in self.tables:
            uniform(table.weight, args.init)
        for layer in [*self.bottom, *self.top]:
            if isinstance(layer, nn.Linear):
                uniform(layer.weight, layer.in_features ** -0.5)
                uniform(layer.bias, layer.in_features ** -0.5)
        vectors = len(self.tables) + (1 if bottom else 0)
        rows, columns = torch.tril_indices(vectors, vectors, -1, device=mlp_device)
        self.pairs = rows * vectors + columns

    def forward(self, dense, sparse):
        sparse = sparse.to(self.table_device, non_blocking=True)
        vectors = torch.stack([table(sparse[:, i:i + 1]) for i, table in enumerate(self.tables)], 1)
        z = vectors.to(self.mlp_device, non_blocking=True)
        if len(self.bottom):
            x = self.bottom(dense.to(self.mlp_device, non_blocking=True))
            z = torch.cat([x.unsqueeze(1), z], 1)
        products = torch.bmm(z, z.transpose(1, 2)).flatten(1)
        products = products.gather(1, self.pairs.expand(len(products), -1))
        return self.top(torch.cat([z[:, 0], products], 1)).squeeze(1)


def main():
    parser = click_log.parser(__doc__)
    parser.add_argument("--mode", choices=["cpu", "hybrid", "gpu"], default="cpu")
    click_log.add_precision(parser)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    log = click_log.ClickLog(args.log)
    model = Dlrm(args, log, torch.device("cuda" if args.mode == "gpu" else "cpu"),
                 torch.device("cpu" if args.mode == "cpu" else "cuda"))
    mlps = [*model.bottom.parameters(), *model.top.parameters()]
    optimizers = [torch.optim.Adagrad(mlps, lr=args.lr),
                  torch.optim.Adagrad(model.tables.parameters(), lr=args.lr)]
    loss_of = nn.BCEWithLogitsLoss()

    def logits_of(dense, sparse):
        with torch.autocast(model.mlp_device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            return model(torch.from_numpy(dense), torch.from_numpy(sparse)).float()
    wait = torch.cuda.synchronize if args.mode != "cpu" else lambda: None
    speed = click_log.Speed(args.batch)
    for dense, sparse, labels in log.training_batches(args.batch, args.steps):
        logits = logits_of(dense, sparse)
        # Every sample weighs the same, also in a shorter last batch.
        share = len(labels) / args.batch
        loss = share * loss_of(logits, torch.from_numpy(labels).to(model.mlp_device))
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        speed.step(wait)
    with torch.no_grad():
        click_log.report(args, log, f"torch={torch.__version__}", speed.median(), lambda dense, sparse:
                         logits_of(dense, sparse).cpu().numpy())


if __name__ == "__main__":
    main()
