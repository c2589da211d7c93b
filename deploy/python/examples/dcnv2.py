"""DCN-V2 (Wang et al., 2021) in PyTorch, its embeddings on Thermocline's servers.

    thermocline train dcnv2.textproto --data train.txt.gz

starts this script beside its worker. The crossing layers stand before the deep ones.
"""
import os

import thermocline
import torch
from torch import nn
from torch.nn import functional as F

# DCN_LAYERS=small makes a model for a first try.
NUM_CROSSES = 3
DEEP = [32] if os.environ.get('DCN_LAYERS') == 'small' else [512, 256]


class Dcnv2(nn.Module):
    def __init__(self, embeddings, num_numeric):
        super().__init__()
        self.embeddings = embeddings
        width = sum(feature.dim for feature in embeddings.features) + num_numeric
        self.crosses = nn.ModuleList(nn.Linear(width, width) for _ in range(NUM_CROSSES))
        layers = []
        for inputs, outputs in zip([width, *DEEP], DEEP):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.deep = nn.Sequential(*layers, nn.Linear(DEEP[-1], 1))

    def forward(self, batch):
        """The logits [size] of a batch."""
        first = torch.cat([self.embeddings(batch).flatten(1), batch.numeric], dim=1)  # [size, width]
        crossed = first
        for cross in self.crosses:
            crossed = first * cross(crossed) + crossed
        return self.deep(crossed).squeeze(1)


def main():
    with thermocline.worker() as run:
        torch.manual_seed(run.job.seed)
        net = Dcnv2(run.embeddings(), len(run.job.numeric))
        opt = torch.optim.Adam(net.parameters(), lr=0.001)
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
