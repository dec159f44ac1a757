# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Tree-LSTM: a sentence is read along its parse tree; and one that does not look into parts that it can do without."""

from __future__ import annotations

from typing import Union

import torch
from torch import Tensor, nn

#: A word's place in the sentence, or the two parts of a phrase.
Tree = Union[int, tuple["Tree", "Tree"]]
State = tuple[Tensor, Tensor]

#: The parse of a sentence of eight words.
DEFAULT_TREE: Tree = (((0, 1), 2), ((3, (4, 5)), (6, 7)))


class TreeLSTM(nn.Module):
    """A binary Tree-LSTM with a classifier at the root.

    Parameters
    ----------
    tree : Tree
        The tree of all sentences, nested pairs of places.
    vocab_size, embed_dim, hidden_size, num_classes : int
        Widths and counts.
    """

    def __init__(
        self, tree: Tree = DEFAULT_TREE, vocab_size: int = 500, embed_dim: int = 64, hidden_size: int = 64, num_classes: int = 5
    ) -> None:
        super().__init__()
        self.tree = tree
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.leaf = nn.Linear(embed_dim, 2 * hidden_size)
        self.compose = nn.Linear(2 * hidden_size, 5 * hidden_size)
        self.classifier = nn.Linear(hidden_size, num_classes)

    def read(self, embedded: Tensor) -> State:
        """Return the state of a leaf."""
        c, o = self.leaf(embedded).chunk(2, dim=1)
        return torch.sigmoid(o) * torch.tanh(c), c

    def merge(self, left: State, right: State) -> State:
        """Return the state of a phrase from those of its parts."""
        i, f_left, f_right, o, u = self.compose(torch.cat([left[0], right[0]], dim=1)).chunk(5, dim=1)
        c = torch.sigmoid(i) * torch.tanh(u) + torch.sigmoid(f_left) * left[1] + torch.sigmoid(f_right) * right[1]
        return torch.sigmoid(o) * torch.tanh(c), c

    def traverse(self, tree: Tree, embedded: Tensor) -> State:
        """Return the state of a node."""
        if isinstance(tree, int):
            return self.read(embedded[:, tree])
        left, right = tree
        return self.merge(self.traverse(left, embedded), self.traverse(right, embedded))

    def forward(self, words: Tensor) -> Tensor:
        """Return the logits of a sentence (1, words)."""
        h, _ = self.traverse(self.tree, self.embedding(words))
        return self.classifier(h)


def leaves(tree: Tree) -> list[int]:
    """Return the places of the words in a phrase, from left to right."""
    if isinstance(tree, int):
        return [tree]
    return [place for part in tree for place in leaves(part)]


class GatedTreeLSTM(TreeLSTM):
    """At every phrase a gate looks at the mean of its words: is that enough, the tree below is not traversed."""

    def __init__(
        self, tree: Tree = DEFAULT_TREE, vocab_size: int = 500, embed_dim: int = 64, hidden_size: int = 64, num_classes: int = 5
    ) -> None:
        super().__init__(tree, vocab_size, embed_dim, hidden_size, num_classes)
        self.gate = nn.Sequential(nn.Linear(embed_dim, 16), nn.ReLU(), nn.Linear(16, 1))

    def traverse(self, tree: Tree, embedded: Tensor) -> State:
        """Return the state of a node, from what is below only if the gate says that it matters."""
        if isinstance(tree, int):
            return self.read(embedded[:, tree])
        summary = embedded[:, leaves(tree)].mean(dim=1)
        if torch.sigmoid(self.gate(summary)) > 0.5:
            return self.read(summary)
        left, right = tree
        return self.merge(self.traverse(left, embedded), self.traverse(right, embedded))
