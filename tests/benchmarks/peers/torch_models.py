#!/usr/bin/env python3
"""The models of the job file's presets in plain PyTorch, one process: written after their papers, and trained as a job
says.

    torch_models.py LOG --job JOB.textproto [--set FIELDS] [--tables each|one] [--precision fp32|bf16]

JOB has one of the stanzas dlrm, wide_deep, deepfm, dcnv2, finalmlp, din, bst, tbsm, mmoe and ple; it says the widths,
the tables' dim and initial values, the optimizer, the rate, the batch size and the passes; of a log with lists also
which features and labels there are, and which lists are sequences. --set merges more fields of a job into it, in the
same form. `each` has sparse rows for each table (looked up by an nn.EmbeddingBag where no log has lists), `one` one
nn.Embedding(sparse=True) for all of them, which is faster on some machines. bf16 is torch.autocast's: products in
bfloat16, tables, parameters and loss in float32.

The histories of a batch are padded to its longest, before their first steps, and a mask says which steps are real.
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


class Score(nn.Module):
    """DIN's activation unit: a hidden layer or two over query, step, their difference and product; a number."""

    def __init__(self, width, units):
        super().__init__()
        layers = []
        for inputs, outputs in zip([4 * width, *units], units):
            layers += [nn.Linear(inputs, outputs), nn.PReLU(outputs)]
        self.layers = nn.ModuleList([*layers, nn.Linear(units[-1], 1)])

    def forward(self, query, steps):
        x = torch.cat([query.expand_as(steps), steps, query - steps, query * steps], 2)
        shape, x = x.shape[:2], x.flatten(0, 1)  # nn.PReLU has its slopes along the second dimension.
        for layer in self.layers:
            x = layer(x)
        return x.view(shape)


class SequenceModel(nn.Module):
    """A model that reads a history step by step. `own` of its forward is the sample's own step, `is_step` what of
    `steps` is no padding."""
    first_order = False


class Din(SequenceModel):
    """Zhou et al. 2018: a sum of the steps, weighted by how well they go with the sample's own."""

    def __init__(self, settings, numbers, features, dim, history):
        super().__init__()
        width, units = history.parts * dim, job_text.listed(settings, "deep")
        self.score = Score(width, job_text.listed(settings, "attention"))
        self.softmax = settings.get("softmax") == "true"
        self.deep = mlp(numbers + features * dim + width, units, settings.get("dropout", 0))
        self.last = nn.Linear(units[-1], 1)

    def forward(self, dense, vectors, steps, is_step, own):
        scores = self.score(own.unsqueeze(1), steps)
        if self.softmax:
            scores = scores.masked_fill(~is_step, -1e9).softmax(1)
        interest = ((scores * is_step).unsqueeze(2) * steps).sum(1)
        return self.last(self.deep(torch.cat([dense, vectors.flatten(1), interest], 1))).squeeze(1)


class Block(nn.Module):
    """Vaswani et al. 2017, as BST has it: layer norm comes after the sums."""

    def __init__(self, width, heads, units, dropout):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        # The distribution of nn.Linear, also for the three products before the attention.
        for parameter in (self.attention.in_proj_weight, self.attention.in_proj_bias, self.attention.out_proj.bias):
            nn.init.uniform_(parameter, -width ** -0.5, width ** -0.5)
        self.linear = nn.Sequential(nn.Linear(width, units), nn.ReLU(), nn.Linear(units, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, is_step):
        attended, _ = self.attention(x, x, x, key_padding_mask=~is_step, need_weights=False)
        x = self.norms[0](x + self.dropout(attended))
        return self.norms[1](x + self.dropout(self.linear(x)))


class Bst(SequenceModel):
    """Chen et al. 2019: self-attention over the history and the sample's own step."""

    def __init__(self, settings, numbers, features, dim, history):
        super().__init__()
        width, units = history.parts * dim, job_text.listed(settings, "deep")
        dropout, positions = settings.get("dropout", 0), settings.get("positions", 0)
        self.positions = nn.Parameter(torch.empty(positions, width).uniform_(-0.01, 0.01)) \
            if positions else None
        self.blocks = nn.ModuleList(Block(width, settings.get("heads", 1), settings.get("units", 4 * width), dropout)
                                    for _ in range(settings.get("blocks", 1)))
        self.deep = mlp(numbers + features * dim + width, units, dropout)
        self.last = nn.Linear(units[-1], 1)

    def forward(self, dense, vectors, steps, is_step, own):
        x = torch.cat([steps, own.unsqueeze(1)], 1)
        is_step = torch.cat([is_step, is_step.new_ones(len(x), 1)], 1)
        if self.positions is not None:
            x = x + self.positions[torch.arange(x.shape[1] - 1, -1, -1).clamp(max=len(self.positions) - 1)]
        for block in self.blocks:
            x = block(x, is_step)
        mean = (x * is_step.unsqueeze(2)).sum(1) / is_step.sum(1, keepdim=True)
        return self.last(self.deep(torch.cat([dense, vectors.flatten(1), mean], 1))).squeeze(1)


class Tbsm(SequenceModel):
    """Ishkhanov et al. 2020, as Meta's code has it with the inner product `ind` and the mechanism `mul`: a DLRM at each
    step, whose vectors of length 1 are weighted by their products with that of the sample's own step."""

    def __init__(self, settings, numbers, features, dim, history):
        super().__init__()
        bottom = [numbers, *job_text.listed(settings, "bottom"), dim] if numbers else []
        self.bottom = torch_dlrm.mlp(list(zip(bottom, bottom[1:])), True)
        self.others, self.dim = [i for i in range(features) if i not in history.own], dim
        vectors = bool(numbers) + history.parts + len(self.others)
        top = [dim + vectors * (vectors - 1) // 2, *job_text.listed(settings, "top")]
        self.top = torch_dlrm.mlp(list(zip(top, top[1:])), True)
        self.inner = nn.Parameter(torch.empty(top[-1], top[-1]).uniform_(-top[-1] ** -0.5, top[-1] ** -0.5))
        head = [2 * top[-1], *job_text.listed(settings, "head"), 1]
        self.head = torch_dlrm.mlp(list(zip(head, head[1:])), False)
        rows, columns = torch.tril_indices(vectors, vectors, -1)
        self.pairs = rows * vectors + columns

    def forward(self, dense, vectors, steps, is_step, own):
        steps = torch.cat([steps, own.unsqueeze(1)], 1).unflatten(2, (-1, self.dim))
        samples, length = steps.shape[:2]
        of_sample = [vectors[:, self.others]]
        if len(self.bottom):
            of_sample.insert(0, self.bottom(dense).unsqueeze(1))
        repeated = [of.unsqueeze(1).expand(-1, length, -1, -1) for of in of_sample]
        z = torch.cat([*repeated[:-1], steps, repeated[-1]], 2).flatten(0, 1)
        products = torch.bmm(z, z.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        z = nn.functional.normalize(self.top(torch.cat([z[:, 0], products], 1)), dim=1).view(samples, length, -1)
        history, last = z[:, :-1], z[:, -1]
        scores = torch.einsum("bi,ij,btj->bt", last, self.inner, history) * is_step
        context = torch.einsum("bt,bti->bi", scores, history)
        return self.head(torch.cat([context, last], 1)).squeeze(1)


class Tower(nn.Module):
    """A task's own MLP."""

    def __init__(self, width, settings):
        super().__init__()
        units = job_text.listed(settings, "tower")
        self.layers = nn.Sequential(mlp(width, units, settings.get("dropout", 0)), nn.Linear([width, *units][-1], 1))

    def forward(self, x):
        return self.layers(x)


class Mix(nn.Module):
    """A gate: what the experts say, in shares that the context decides."""

    def __init__(self, width, experts):
        super().__init__()
        self.linear = nn.Linear(width, experts)

    def forward(self, context, experts):
        return (self.linear(context).softmax(1).unsqueeze(2) * torch.stack(experts, 1)).sum(1)


class Mmoe(nn.Module):
    """Ma et al. 2018: experts of all tasks, a gate and a tower for each."""
    first_order = False

    def __init__(self, settings, numbers, features, dim, tasks):
        super().__init__()
        width, units = numbers + features * dim, job_text.listed(settings, "expert")
        self.experts = nn.ModuleList(mlp(width, units, settings.get("dropout", 0))
                                     for _ in range(settings["experts"]))
        self.gates = nn.ModuleList(Mix(width, len(self.experts)) for _ in range(tasks))
        self.towers = nn.ModuleList(Tower(units[-1], settings) for _ in range(tasks))

    def forward(self, dense, vectors):
        x = torch.cat([dense, vectors.flatten(1)], 1)
        experts = [expert(x) for expert in self.experts]
        return torch.cat([tower(gate(x, experts)) for gate, tower in zip(self.gates, self.towers)], 1)


class Extraction(nn.Module):
    """One level of PLE. Its inputs and outputs are those of the tasks, and the shared ones last."""

    def __init__(self, settings, width, tasks, is_last):
        super().__init__()
        units, own, shared = job_text.listed(settings, "expert"), settings["task_experts"], settings["shared_experts"]
        self.experts = nn.ModuleList(
            nn.ModuleList(mlp(width, units, settings.get("dropout", 0)) for _ in range(count))
            for count in [own] * tasks + [shared])
        self.gates = nn.ModuleList(Mix(width, count) for count in
                                   [own + shared] * tasks + ([] if is_last else [own * tasks + shared]))

    def forward(self, inputs):
        experts = [[expert(x) for expert in of] for of, x in zip(self.experts, inputs)]
        read = [own + experts[-1] for own in experts[:-1]] + [sum(experts, [])]
        return [gate(x, of) for gate, x, of in zip(self.gates, inputs, read)]


class Ple(nn.Module):
    """Tang et al. 2020: experts of each task beside shared ones, level by level."""
    first_order = False

    def __init__(self, settings, numbers, features, dim, tasks):
        super().__init__()
        levels, width = settings.get("levels", 1), numbers + features * dim
        widths = [width] + [job_text.listed(settings, "expert")[-1]] * levels
        self.levels = nn.ModuleList(Extraction(settings, width, tasks, level == levels - 1)
                                    for level, width in enumerate(widths[:-1]))
        self.towers = nn.ModuleList(Tower(widths[-1], settings) for _ in range(tasks))
        self.tasks = tasks

    def forward(self, dense, vectors):
        inputs = [torch.cat([dense, vectors.flatten(1)], 1)] * (self.tasks + 1)
        for level in self.levels:
            inputs = level(inputs)
        return torch.cat([tower(x) for tower, x in zip(self.towers, inputs)], 1)


MODELS = {"dlrm": Dlrm, "wide_deep": WideDeep, "deepfm": DeepFm, "dcnv2": Dcnv2, "finalmlp": FinalMlp,
          "din": Din, "bst": Bst, "tbsm": Tbsm, "mmoe": Mmoe, "ple": Ple}


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


class History:
    """The job's one sequence: its lists, and which of the pooled features are the sample's own step."""

    def __init__(self, job, pooled):
        stanza, = job_text.listed(job, "sequence")
        self.lists = job_text.listed(stanza, "of")
        self.parts = len(self.lists)
        table_of = dict(pooled_tables(job))
        own = job_text.listed(stanza, "then") or [
            next(name for name in pooled if table_of[name] == table_of[of]) for of in self.lists]
        self.own = [pooled.index(name) for name in own]


def stanzas(job):
    """{feature: its stanza}"""
    return {name: stanza for stanza in job_text.listed(job, "feature")
            for name in ([stanza["name"]] if "name" in stanza else job_text.listed(stanza, "column"))}


def pooled_tables(job):
    return [(name, stanza.get("table", name)) for name, stanza in stanzas(job).items() if "numeric" not in stanza]


class Lists(nn.Module):
    """The rows of a log with lists. Each table has one row more, which is 0 and stands for padding."""
    first = None

    def __init__(self, log, job, dim, scale, is_one, by_step):
        """by_step: whether the model reads the job's sequence by step. Its lists are not pooled then."""
        super().__init__()
        of_job, at, tables = stanzas(job), 0, list(dict.fromkeys(feature.table for feature in log.features))
        first_rows = np.r_[0, np.cumsum(log.cardinalities)]
        self.places, self.is_one = {}, is_one  # [feature]: its columns, table, first row, pooling
        for feature in log.features:
            if feature.name in of_job:
                table = tables.index(feature.table)
                self.places[feature.name] = (slice(at, at + feature.columns), 0 if is_one else table,
                                             int(first_rows[table]) if is_one else 0,
                                             of_job[feature.name].get("pooling", "SUM") if feature.is_list else None)
            at += feature.columns
        sequence = job_text.listed(job, "sequence") if by_step else []
        steps = [name for stanza in sequence for name in job_text.listed(stanza, "of")]
        self.pooled = [name for name in self.places if name not in steps]
        self.history = History(job, self.pooled) if sequence else None
        sizes = [sum(log.cardinalities)] if is_one else log.cardinalities
        self.rows = nn.ParameterList(torch.cat([torch.empty(rows, dim).uniform_(-scale, scale), torch.zeros(1, dim)])
                                     for rows in sizes)

    def lookup(self, name, sparse):
        """([samples, values, dim], [samples, values]: which of them are no padding), of the batch's longest."""
        columns, table, first_row, _ = self.places[name]
        ids, rows = sparse[:, columns], self.rows[table]
        is_value = ids >= 0
        longest = max(1, int(is_value.sum(1).max()))
        ids, is_value = ids[:, -longest:], is_value[:, -longest:]
        ids = torch.where(is_value, ids + first_row, len(rows) - 1)
        return nn.functional.embedding(ids, rows, padding_idx=len(rows) - 1, sparse=True), is_value

    def forward(self, sparse):
        """Returns the pooled vectors [samples, features, dim], and where there is a sequence: its steps
        [samples, length, width], which of them are no padding, and the sample's own step [samples, width]."""
        plain = [name for name in self.pooled if self.places[name][3] is None]
        vectors = {}
        if self.is_one:
            ids = torch.cat([sparse[:, self.places[name][0]] + self.places[name][2] for name in plain], 1)
            vectors = dict(zip(plain, nn.functional.embedding(ids, self.rows[0], sparse=True).unbind(1)))
        for name in self.pooled:
            if name not in vectors:
                rows, is_value = self.lookup(name, sparse)
                pooled = rows.sum(1)
                is_mean = self.places[name][3] == "MEAN"
                vectors[name] = pooled / is_value.sum(1, keepdim=True).clamp(min=1) if is_mean else pooled
        pooled = torch.stack([vectors[name] for name in self.pooled], 1)
        if self.history is None:
            return (pooled,)
        steps, is_step = zip(*(self.lookup(name, sparse) for name in self.history.lists))
        return pooled, torch.cat(steps, 2), is_step[0], pooled[:, self.history.own].flatten(1)


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
    scale, is_one = job["default_table"].get("init_scale", 0.01), args.tables == "one"
    numbers, made, tasks = log.split("train")[0].shape[1], MODELS[kind], [0]
    if any(feature.is_list for feature in log.features):
        tables = Lists(log, job, dim, scale, is_one, issubclass(made, SequenceModel))
        labels = job_text.listed(job["data"]["label"], "column")
        tasks = [log.labels.index(label) if log.labels else 0
                 for label in (labels if made in (Mmoe, Ple) else labels[:1])]
        more = [tables.history] if tables.history else [len(tasks)] if made in (Mmoe, Ple) else []
        model = made(settings, numbers, len(tables.pooled), dim, *more)
    else:
        model = made(settings, numbers, len(log.cardinalities), dim)
        tables = Tables(log.cardinalities, dim, scale, model.first_order, is_one)
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
            labels = torch.from_numpy(labels.reshape(len(labels), -1)[:, tasks]).view_as(logits)
            loss = len(tasks) * len(labels) / batch * loss_of(logits, labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            speed.step()
    model.eval()
    with torch.no_grad():
        click_log.report(args, log, f"torch={torch.__version__}", speed.median(), lambda dense, sparse:
                         logits_of(dense, sparse).numpy(), tasks)


if __name__ == "__main__":
    main()
