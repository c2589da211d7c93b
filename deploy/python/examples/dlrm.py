"""DLRM (Naumov et al., 2019) in PyTorch, its embeddings on Thermocline's servers.

    thermocline train dlrm.textproto --data train.txt.gz

starts this script beside its worker. It is the model that a job with `dlrm { ... }` trains without a script.
"""
import os

import thermocline
import torch
from torch import nn
from torch.nn import functional as F

# Widths of the layers; DLRM_LAYERS=small makes a model for a first try.
IS_SMALL = os.environ.get('DLRM_LAYERS') == 'small'
BOTTOM = [32] if IS_SMALL else [512, 256, 64]  # The tables' dim is appended.
TOP = [32] if IS_SMALL else [512, 256]  # 1 is appended.


def mlp(widths, relu_after_last):
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*(layers if relu_after_last else layers[:-1]))


class Dlrm(nn.Module):
    """A bottom MLP over the numbers, dot products of its output and all vectors, a top MLP over both."""

    def __init__(self, embeddings, num_numeric):
        super().__init__()
        self.embeddings = embeddings
        dim = embeddings.features[0].dim
        num_vectors = len(embeddings.features) + 1
        self.bottom = mlp([num_numeric, *BOTTOM, dim], relu_after_last=True)
        self.top = mlp([dim + num_vectors * (num_vectors - 1) // 2, *TOP, 1], relu_after_last=False)
        rows, columns = torch.tril_indices(num_vectors, num_vectors, offset=-1)
        self.register_buffer('pairs', rows * num_vectors + columns, persistent=False)

    def forward(self, batch):
        """The logits [size] of a batch."""
        numbers = self.bottom(batch.numeric)  # [size, dim]
        vectors = torch.cat([numbers.unsqueeze(1), self.embeddings(batch)], dim=1)  # [size, vectors, dim]
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        dots = dots.gather(1, self.pairs.expand(len(dots), -1))  # [size, pairs of different vectors]
        return self.top(torch.cat([numbers, dots], dim=1)).squeeze(1)


def main():
    with thermocline.worker() as run:
        torch.manual_seed(run.job.seed)
        net = Dlrm(run.embeddings(), len(run.job.numeric))
        opt = torch.optim.Adagrad(net.parameters(), lr=0.01)
        run.track(net=net, opt=opt)
        for batch in run.batches(evaluate=net):
            loss = F.binary_cross_entropy_with_logits(net(batch), batch.label, batch.weight)
            run.backward(loss)  # A pass may end with a short batch, of which each sample counts as much as any other.
            opt.step()
            opt.zero_grad()
            run.step(loss)
        print(run.evaluate(net))


if __name__ == '__main__':
    main()
