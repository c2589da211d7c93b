#!/usr/bin/env python3
"""DLRM on TensorFlow's parameter servers: N servers and one worker over gRPC, on this machine.

    tf_ps_dlrm.py LOG [--servers 1] [--dense worker|ps] [--precision fp32|bf16]

The process that starts is the coordinator (ParameterServerStrategy, ClusterCoordinator). It starts the
others (tf.distribute.Server) as its children and ends them. As someone who knows TensorFlow well writes it:
- The 26 tables are one variable a server (row r is on server r % N), so a step pulls and pushes one
  tensor a server.
- The input pipeline finds a batch's distinct rows ahead of the step (tf.unique). A step pulls each once
  and pushes one summed gradient for it; the server applies it with ResourceSparseApplyAdagradV2.
- tf.data reads, slices and prefetches the files without Python.
- The coordinator schedules --unroll steps at a time.
- The pairs are picked by a gather whose gradient is a gather, too: TensorFlow's own is slow.
- The MLPs' parameters are one flat variable, on the worker (--dense worker) or one a server (ps).
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile

import click_log
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"


def serve(args):
    """A server or the worker, as TF_CONFIG says; runs until it is killed."""
    import tensorflow as tf
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=args.threads * (1 if args.role == "ps" else 2),
        intra_op_parallelism_threads=args.threads)
    tf.distribute.Server(resolver.cluster_spec(), job_name=resolver.task_type, config=config,
                         task_index=resolver.task_id, protocol="grpc", start=True).join()


def start(args, folder):
    """Starts the servers and the worker; returns the processes and their addresses."""
    sockets = [socket.socket() for _ in range(args.servers + 1)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    cluster = {"ps": addresses[:-1], "worker": addresses[-1:]}
    tasks = []
    for role, index in [("ps", i) for i in range(args.servers)] + [("worker", 0)]:
        config = {"cluster": cluster, "task": {"type": role, "index": index}}
        with open(os.path.join(folder, f"{role}-{index}.log"), "w") as log:
            tasks.append(subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--role", role],
                env=dict(os.environ, TF_CONFIG=json.dumps(config)), stdout=log, stderr=log))
    return tasks, cluster


class Model:
    """The variables, and a step as a graph."""

    def __init__(self, tf, args, log, strategy):
        self.tf, self.args = tf, args
        self.servers, self.dim = args.servers, args.dim
        self.type = tf.bfloat16 if args.precision == "bf16" else tf.float32
        self.vectors = len(log.cardinalities) + 1
        self.first_rows = np.r_[0, np.cumsum(log.cardinalities)[:-1]].astype(np.int32)
        self.bottom, self.top = click_log.layer_sizes(args, log)
        self.shapes = [s for i, o in self.bottom + self.top for s in ((i, o), (o,))]
        self.sizes = [int(np.prod(s)) for s in self.shapes]
        rows, columns = np.tril_indices(self.vectors, -1)
        self.take = (rows * self.vectors + columns).astype(np.int32)
        self.back = np.full(self.vectors ** 2, len(self.take), np.int32)
        self.back[self.take] = np.arange(len(self.take))
        self.make_variables(strategy, sum(log.cardinalities))

    def make_variables(self, strategy, rows):
        """The strategy puts variables on the servers in turn: of N of a kind the i-th is on server i."""
        tf, args = self.tf, self.args
        rng = np.random.default_rng(args.seed)
        dense = np.concatenate([rng.uniform(-i ** -0.5, i ** -0.5, size) for i, o in self.bottom + self.top
                                for size in (i * o, o)]).astype(np.float32)
        local = [len(range(server, rows, self.servers)) for server in range(self.servers)]
        initial = lambda n, i: tf.random.stateless_uniform([n, self.dim], [args.seed, i], -args.init, args.init)
        with strategy.scope():
            self.tables = [tf.Variable(lambda n=n, i=i: initial(n, i)) for i, n in enumerate(local)]
            self.table_squares = [tf.Variable(lambda n=n: tf.zeros([n, self.dim])) for n in local]
            if args.dense == "ps":
                self.dense = [tf.Variable(p) for p in np.array_split(dense, self.servers)]
                self.dense_squares = [tf.Variable(tf.zeros_like(v)) for v in self.dense]
        if args.dense == "worker":
            with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
                self.dense, self.dense_squares = [tf.Variable(dense)], [tf.Variable(tf.zeros_like(dense))]

    def distinct(self, sparse):
        """[batch, tables] ids -> the distinct rows of each server; each id's place in their concatenation."""
        tf = self.tf
        rows, places = tf.unique(tf.reshape(sparse + self.first_rows, [-1]))
        if self.servers == 1:
            return (rows,), places
        server = rows % self.servers
        order = tf.concat(tf.dynamic_partition(tf.range(tf.size(rows)), server, self.servers), 0)
        return (tuple(tf.dynamic_partition(rows // self.servers, server, self.servers)),
                tf.gather(tf.math.invert_permutation(order), places))

    def fetch(self, rows, places, batch):
        tf = self.tf
        dense = tf.split(tf.concat([v.read_value() for v in self.dense], 0), self.sizes)
        pulled = tf.concat([tf.raw_ops.ResourceGather(resource=t.handle, indices=r, dtype=tf.float32)
                            for t, r in zip(self.tables, rows)], 0)
        return ([tf.reshape(d, s) for d, s in zip(dense, self.shapes)],
                tf.reshape(tf.gather(pulled, places), [batch, self.vectors - 1, self.dim]))

    def forward(self, dense, vectors, x):
        tf, parameters = self.tf, iter(dense)
        for _ in self.bottom:
            x = tf.nn.relu(self.linear(x, next(parameters), next(parameters)))
        z = tf.cast(tf.concat([x[:, None, :], vectors], 1), self.type)
        pairs = self.pairs(tf.reshape(tf.matmul(z, z, transpose_b=True), [-1, self.vectors ** 2]))
        x = tf.concat([x, tf.cast(pairs, tf.float32)], 1)
        for i, _ in enumerate(self.top):
            x = self.linear(x, next(parameters), next(parameters))
            x = tf.nn.relu(x) if i + 1 < len(self.top) else x
        return x

    def linear(self, x, weights, bias):
        """Only the product is in --precision: a bias whose gradient was summed in bfloat16 would learn worse."""
        tf = self.tf
        product = tf.matmul(tf.cast(x, self.type), tf.cast(weights, self.type))
        return tf.nn.bias_add(tf.cast(product, tf.float32), bias)

    def pairs(self, products):
        tf = self.tf

        @tf.custom_gradient
        def pick(x):
            gradient = lambda g: tf.gather(tf.pad(g, [[0, 0], [0, 1]]), self.back, axis=1)
            return tf.gather(x, self.take, axis=1), gradient
        return pick(products)

    def step(self, x, rows, places, labels):
        tf, args = self.tf, self.args
        dense, vectors = self.fetch(rows, places, args.batch)
        with tf.GradientTape() as tape:
            tape.watch([vectors, *dense])
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(
                labels=labels, logits=self.forward(dense, vectors, x)))
        of_vectors, *of_dense = tape.gradient(loss, [vectors, *dense])
        counts = [tf.size(r) for r in rows]
        of_rows = tf.math.unsorted_segment_sum(tf.reshape(of_vectors, [-1, self.dim]), places, tf.add_n(counts))
        of_dense = tf.concat([tf.reshape(g, [-1]) for g in of_dense], 0)
        of_rows = tf.split(of_rows, counts) if self.servers > 1 else [of_rows]
        for v, s, r, g in zip(self.tables, self.table_squares, rows, of_rows):
            tf.raw_ops.ResourceSparseApplyAdagradV2(var=v.handle, accum=s.handle, lr=args.lr, epsilon=1e-10,
                                                    grad=g, indices=r)
        for v, s, g in zip(self.dense, self.dense_squares, tf.split(of_dense, [v.shape[0] for v in self.dense])):
            tf.raw_ops.ResourceApplyAdagradV2(var=v.handle, accum=s.handle, lr=args.lr, epsilon=1e-10, grad=g)
        return loss


def training_data(tf, args, log, model):
    def records(name, dtype):
        path = f"{log.folder}/train_{name}.npy"
        array = np.load(path, mmap_mode="r")
        if array.dtype != dtype:
            sys.exit(f"{path} has {array.dtype}; this script reads {np.dtype(dtype).name}")
        size = args.batch * array.shape[1] * 4
        data = tf.data.FixedLengthRecordDataset(path, size, header_bytes=array.offset,
                                                footer_bytes=array.nbytes % size)
        return data.map(lambda r: tf.reshape(tf.io.decode_raw(r, dtype), [args.batch, array.shape[1]]))

    data = tf.data.Dataset.zip((records("dense", np.float32), records("sparse", np.int32),
                                records("labels", np.int32)))
    data = data.map(lambda x, s, y: (x, *model.distinct(s), tf.cast(y, tf.float32)))
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    return data.prefetch(4).with_options(options)


def coordinate(args, cluster):
    import tensorflow as tf
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    log = click_log.ClickLog(args.log)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(cluster), rpc_layer="grpc")
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    model = Model(tf, args, log, strategy)

    @tf.function
    def steps(iterator, count):
        times = []
        for _ in range(count):
            with tf.control_dependencies([model.step(*next(iterator))]):
                times.append(tf.timestamp())
        return tf.stack(times)

    @tf.function(reduce_retracing=True)
    def score(x, sparse):
        rows, places = model.distinct(sparse)
        return model.forward(*model.fetch(rows, places, tf.shape(x)[0]), x)[:, 0]

    whole = len(log.split("train")[2]) // args.batch
    total = min(args.steps or whole, whole)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: training_data(tf, args, log, model)))
    counts = [args.unroll] * (total // args.unroll) + [total % args.unroll] * (total % args.unroll > 0)
    results = [coordinator.schedule(steps, args=(iterator, count)) for count in counts]
    coordinator.join()
    speed = click_log.Speed(args.batch)
    times = np.concatenate([r.fetch() for r in results])
    speed.times = [times[0], *times[click_log.WINDOW_STEPS - 1::click_log.WINDOW_STEPS]]

    def scored(x, sparse):
        result = coordinator.schedule(score, args=(tf.constant(x), tf.constant(sparse.astype(np.int32))))
        coordinator.join()
        return result.fetch()
    click_log.report(args, log, f"tensorflow={tf.__version__}", speed.median(), scored)


def main():
    parser = click_log.parser(__doc__)
    click_log.add_precision(parser)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--dense", choices=["worker", "ps"], default="worker")
    parser.add_argument("--unroll", type=int, default=click_log.WINDOW_STEPS)
    parser.add_argument("--role", default="", help="of a process that this script starts itself")
    args = parser.parse_args()
    if args.role:
        return serve(args)
    folder = tempfile.mkdtemp(prefix="tf_ps_")
    tasks, cluster = start(args, folder)
    try:
        coordinate(args, cluster)
    finally:
        for task in tasks:
            task.kill()
        for task in tasks:
            task.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
