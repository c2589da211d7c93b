"""A transformer over a user's history (Chen et al., 2019: "Behavior Sequence Transformer") in PyTorch.

    thermocline train transformer.textproto --data movielens_100k_history.csv.gz

starts this script beside its worker. It predicts whether the user likes an item: the item stands behind the items that
the user has liked before, and attends to them.
"""
import thermocline
import torch
from torch import nn
from torch.nn import functional as F

LENGTH = 30  # The last entries of a history.
OTHERS = ['user', 'gender', 'occupation', 'genres']


class HistoryTransformer(nn.Module):
    """An entry of the history is an item with its year: two vectors, side by side."""

    def __init__(self, run):
        super().__init__()
        self.target = run.embeddings(['item', 'year'])
        self.history = run.sequences(['hist_item', 'hist_year'], LENGTH)
        self.others = run.embeddings(OTHERS)
        width = 2 * self.target.features[0].dim
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH + 1, width))
        self.encoder = nn.TransformerEncoderLayer(width, nhead=2, dim_feedforward=4 * width, dropout=0.1,
                                                  batch_first=True)
        others = sum(feature.dim for feature in self.others.features)
        self.top = nn.Sequential(nn.Linear(width + others + len(run.job.numeric), 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, batch):
        """The logits [size] of a batch."""
        history, mask = self.history(batch)  # [size, LENGTH, 2, dim], [size, LENGTH]
        entries = torch.cat([history, self.target(batch).unsqueeze(1)], dim=1).flatten(2)  # [size, LENGTH + 1, width]
        is_padding = torch.cat([~mask, mask.new_zeros(batch.size, 1)], dim=1)
        attended = self.encoder(entries + self.positions, src_key_padding_mask=is_padding)[:, -1]
        return self.top(torch.cat([attended, self.others(batch).flatten(1), batch.numeric], dim=1)).squeeze(1)


def main():
    with thermocline.worker() as run:
        torch.manual_seed(run.job.seed)
        net = HistoryTransformer(run)
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
