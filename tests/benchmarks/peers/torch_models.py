#!/usr/bin/env python3
"""The models of the job file's presets in plain PyTorch, one process: written after their papers, and trained as a job
says.

    torch_models.py LOG --job JOB.textproto [--set FIELDS] [--tables each|one] [--precision fp32|bf16]

JOB has one of the stanzas dlrm, wide_deep, deepfm, dcnv2 and finalmlp; it says the widths, the tables' dim and initial
values, the optimizer, the rate, the batch size and the passes. --set merges more fields of a job into it, in the same
form. `each` looks rows up in an nn.EmbeddingBag(sparse=True) for each feature, `one` in one nn.Embedding(sparse=True)
for all of them, which is faster on some machines. bf16 is torch.autocast's: products in bfloat16, tables, parameters and
loss in float32.
"""
import click_log
import job_text
import numpy as np
import torch
import torch_dlrm
from torch import nn

OPTIMIZERS = {"adagrad": (torch.optim.Adagrad, torch.optim.Adagrad),
              "adam": (torch.optim.Adam, torch.optim.SparseAdam),
              "sgd": (torch.optim.SGD, torch.optim.SGD)}


def mlp(width, units, dropout):
    """Fully connected layers; after each a ReLU, and dropout."""
    layers = []
    for inputs, outputs in zip([width, *units], units):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()] + ([nn.Dropout(dropout)] if dropout else [])
    return nn.Sequential(*layers)


class WideDeep(nn.Module):
    """Cheng et al. 2016: a linear model and an MLP."""
    first_order = True

    def __init__(self, settings, numbers, features, dim):
        super().__init__()
        units = job_text.listed(settings, "deep")
        self.deep = mlp(numbers + features * dim, units, settings.get("dropout", 0))
        self.last = nn.Linear(units[-1], 1)
        self.numbers = nn.Linear(numbers, 1, bias=False) if numbers else None
        if self.numbers:
            nn.init.zeros_(self.numbers.weight)

    def forward(self, dense, vectors, first):
        wide = first.unsqueeze(1) + self.numbers(dense) if self.numbers else first.unsqueeze(1)
        return (self.last(self.deep(torch.cat([dense, vectors.flatten(1)], 1))) + wide).squeeze(1)


class DeepFm(WideDeep):
    """Guo et al. 2017: the same, and all pairs of vectors."""

    def forward(self, dense, vectors, first):
        pairs = (vectors.sum(1) ** 2 - (vectors ** 2).sum(1)).sum(1) / 2
        return super().forward(dense, vectors, first) + pairs


class Cross(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.linear = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width)) if rank else \
            nn.Linear(width, width)

    def forward(self, x0, x):
        return x0 * self.linear(x) + x


class Dcnv2(nn.Module):
    """Wang et al. 2021: cross layers, and an MLP beside or above them."""
    first_order = False

    def __init__(self, settings, numbers, features, dim):
        super().__init__()
        width, units = numbers + features * dim, job_text.listed(settings, "deep")
        self.cross = nn.ModuleList(Cross(width, settings.get("cross_rank", 0))
                                   for _ in range(settings["cross_layers"]))
        self.deep = mlp(width, units, settings.get("dropout", 0))
        self.stacked = settings.get("stacked") == "true"
        self.last = nn.Linear(units[-1] if self.stacked else width + units[-1], 1)

    def forward(self, dense, vectors):
        x0 = x = torch.cat([dense, vectors.flatten(1)], 1)
        for cross in self.cross:
            x = cross(x0, x)
        x = self.deep(x) if self.stacked else torch.cat([x, self.deep(x0)], 1)
        return self.last(x).squeeze(1)


class Gate(nn.Module):
    """Weights the numbers of x by some features' vectors, or by a learned vector: an MLP of the number 1."""

    def __init__(self, width, dim, by, hidden):
        super().__init__()
        self.by = by
        self.mlp = nn.Sequential(mlp(len(by) * dim or 1, hidden, 0), nn.Linear(hidden[-1], width))

    def forward(self, x, vectors):
        context = vectors[:, self.by].flatten(1) if self.by else torch.ones(1, 1)
        return 2 * torch.sigmoid(self.mlp(context)) * x


class FinalMlp(nn.Module):
    """Mao et al. 2023: two MLPs, joined by a bilinear product in heads."""
    first_order = False

    def __init__(self, settings, numbers, features, dim):
        super().__init__()
        width, hidden = numbers + features * dim, job_text.listed(settings, "gate")
        names = settings.get("feature_names", [])
        self.gates, self.streams = nn.ModuleList(), nn.ModuleList()
        for stream in ("first", "second"):
            by = [names.index(name) for name in job_text.listed(settings, stream + "_gate_by")]
            self.gates.append(Gate(width, dim, by, hidden) if hidden else None)
            self.streams.append(mlp(width, job_text.listed(settings, stream), settings.get("dropout", 0)))
        x, y = (job_text.listed(settings, stream)[-1] for stream in ("first", "second"))
        self.heads = settings.get("heads", 1)
        self.first, self.second = nn.Linear(x, 1, bias=False), nn.Linear(y, 1)
        bound = (x // self.heads) ** -0.5
        products = torch.empty(self.heads, x // self.heads, y // self.heads)
        self.products = nn.Parameter(products.uniform_(-bound, bound))

    def forward(self, dense, vectors):
        both = torch.cat([dense, vectors.flatten(1)], 1)
        x, y = (stream(gate(both, vectors) if gate else both) for gate, stream in zip(self.gates, self.streams))
        x_heads, y_heads = (of.unflatten(1, (self.heads, -1)) for of in (x, y))
        product = torch.einsum("bhi,hij,bhj->b", x_heads, self.products, y_heads)
        return (self.first(x) + self.second(y)).squeeze(1) + product


class Dlrm(nn.Module):
    """Naumov et al. 2019."""
    first_order = False

    def __init__(self, settings, numbers, features, dim):
        super().__init__()
        bottom = [numbers, *job_text.listed(settings, "bottom"), dim] if numbers else []
        vectors = features + bool(numbers)
        top = [dim + vectors * (vectors - 1) // 2, *job_text.listed(settings, "top"), 1]
        self.bottom = torch_dlrm.mlp(list(zip(bottom, bottom[1:])), True)
        self.top = torch_dlrm.mlp(list(zip(top, top[1:])), False)
        rows, columns = torch.tril_indices(vectors, vectors, -1)
        self.pairs = rows * vectors + columns

    def forward(self, dense, vectors):
        z = torch.cat([self.bottom(dense).unsqueeze(1), vectors], 1) if len(self.bottom) else vectors
        products = torch.bmm(z, z.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([z[:, 0], products], 1)).squeeze(1)


MODELS = {"dlrm": Dlrm, "wide_deep": WideDeep, "deepfm": DeepFm, "dcnv2": Dcnv2, "finalmlp": FinalMlp}


class Tables(nn.Module):
    """The rows of all features; first-order weights are 0 at first."""

    def __init__(self, cardinalities, dim, scale, first_order, is_one):
        super().__init__()
        self.first_rows = torch.from_numpy(np.r_[0, np.cumsum(cardinalities)[:-1]])
        sizes = [sum(cardinalities)] if is_one else cardinalities
        self.vectors = nn.ModuleList(
            nn.Embedding.from_pretrained(weights, freeze=False, sparse=True) if is_one else
            nn.EmbeddingBag.from_pretrained(weights, freeze=False, mode="sum", sparse=True)
            for weights in (torch.empty(rows, dim).uniform_(-scale, scale) for rows in sizes))
        self.first = nn.EmbeddingBag.from_pretrained(torch.zeros(sum(cardinalities), 1), freeze=False, mode="sum",
                                                     sparse=True) if first_order else None
        self.is_one = is_one

    def forward(self, sparse):
        """sparse: [samples, features]. Returns vectors [samples, features, dim], and the sums of first-order weights
        [samples] where there are any."""
        rows = sparse + self.first_rows
        vectors = self.vectors[0](rows) if self.is_one else \
            torch.stack([table(sparse[:, i:i + 1]) for i, table in enumerate(self.vectors)], 1)
        return (vectors, self.first(rows).squeeze(1)) if self.first is not None else (vectors,)


def merge(into, fields):
    for name, value in fields.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


def optimizers_of(job, model, tables):
    table = job["default_table"].get("optimizer", {"adagrad": {}})
    dense = job.get("dense_optimizer", table)

    def made(stanza, place, parameters):
        (kind,) = [name for name in stanza if name in OPTIMIZERS]
        unknown = [name for name in [*stanza, *stanza[kind]] if name not in (kind, "learning_rate_scale")]
        if unknown:
            raise ValueError(f"this program trains without {', '.join(unknown)} of {kind}")
        rate = job["train"]["learning_rate"]["base"] * stanza.get("learning_rate_scale", 1)
        return OPTIMIZERS[kind][place](list(parameters), lr=rate)
    return [made(dense, 0, model.parameters()), made(table, 1, tables.parameters())]


def main():
    parser = click_log.parser(__doc__)
    parser.add_argument("--job", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="FIELDS")
    parser.add_argument("--tables", choices=["each", "one"], default="each")
    click_log.add_precision(parser)
    args = parser.parse_args()
    with open(args.job) as file:
        job = job_text.parse(file.read())
    for fields in args.set:
        merge(job, job_text.parse(fields))
    (kind,) = [name for name in MODELS if name in job]
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    log = click_log.ClickLog(args.log)
    settings, dim, train = job[kind], job["default_table"].get("dim", 16), job["train"]
    model = MODELS[kind](settings, log.split("train")[0].shape[1], len(log.cardinalities), dim)
    tables = Tables(log.cardinalities, dim, job["default_table"].get("init_scale", 0.01), model.first_order,
                    args.tables == "one")
    optimizers = optimizers_of(job, model, tables)
    loss_of = nn.BCEWithLogitsLoss()

    def logits_of(dense, sparse):
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            return model(torch.from_numpy(dense), *tables(torch.from_numpy(sparse))).float()
    batch, speed = train["batch_size"], click_log.Speed(train["batch_size"])
    for _ in range(1 if args.steps else train.get("passes", 1)):
        for dense, sparse, labels in log.training_batches(batch, args.steps):
            logits = logits_of(dense, sparse)
            # Every sample weighs the same, also in a shorter last batch.
            loss = len(labels) / batch * loss_of(logits, torch.from_numpy(labels))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            speed.step()
    model.eval()
    with torch.no_grad():
        click_log.report(args, log, f"torch={torch.__version__}", speed.median(), lambda dense, sparse:
                         logits_of(dense, sparse).numpy())


if __name__ == "__main__":
    main()
