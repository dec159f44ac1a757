# Licensed under the Apache License, Version 2.0; see LICENSE.
"""BERT with a classifier after every layer: it leaves when the entropy is low, or when the answer has stayed the same."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


def entropy(x: Tensor) -> Tensor:
    """Return the entropy of the softmax of each row."""
    exp_x = torch.exp(x)
    a = torch.sum(exp_x, dim=1)
    b = torch.sum(x * exp_x, dim=1)
    return torch.log(a) - b / a


class BertEmbeddings(nn.Module):
    """Embeddings of the words, of their positions and of the segments."""

    def __init__(self, vocab_size: int, hidden_size: int, max_positions: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.position_embeddings = nn.Embedding(max_positions, hidden_size)
        self.token_type_embeddings = nn.Embedding(2, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
        """Return (batch, words, hidden)."""
        position_ids = torch.arange(input_ids.size(1), dtype=torch.long, device=input_ids.device)
        position_ids = position_ids.unsqueeze(0).expand_as(input_ids)
        embeddings = self.word_embeddings(input_ids) + self.position_embeddings(position_ids)
        embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(embeddings))


class BertSelfAttention(nn.Module):
    """Multi-head attention of every word to every word that is not padding."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        self.num_attention_heads = num_heads
        self.attention_head_size = hidden_size // num_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x: Tensor) -> Tensor:
        """Split the heads: (batch, heads, words, head size)."""
        x = x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size)
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the hidden states after attention, residual and norm."""
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        attention_probs = nn.functional.softmax(attention_scores + attention_mask, dim=-1)
        context_layer = torch.matmul(self.dropout(attention_probs), value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(*context_layer.size()[:-2], -1)
        return self.LayerNorm(self.dropout(self.dense(context_layer)) + hidden_states)


class BertLayer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection and a norm behind it."""

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int) -> None:
        super().__init__()
        self.attention = BertSelfAttention(hidden_size, num_heads)
        self.intermediate = nn.Linear(hidden_size, intermediate_size)
        self.output = nn.Linear(intermediate_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the next hidden states."""
        attention_output = self.attention(hidden_states, attention_mask)
        layer_output = self.output(nn.functional.gelu(self.intermediate(attention_output)))
        return self.LayerNorm(self.dropout(layer_output) + attention_output)


class BertHighway(nn.Module):
    """A classifier on the first word's hidden state: the exit behind one layer."""

    def __init__(self, hidden_size: int, num_labels: int) -> None:
        super().__init__()
        self.pooler = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(hidden_size, num_labels)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return the logits."""
        pooled = torch.tanh(self.pooler(hidden_states[:, 0]))
        return self.classifier(self.dropout(pooled))


class EarlyExitBert(nn.Module):
    """What both early-exit encoders share.

    Parameters
    ----------
    vocab_size, num_labels, max_positions : int
        Words, classes, and the longest sentence.
    hidden_size, num_layers, num_heads, intermediate_size : int
        The encoder (BERT base: 768, 12, 12, 3072).
    """

    def __init__(
        self,
        vocab_size: int = 1000,
        num_labels: int = 3,
        max_positions: int = 32,
        hidden_size: int = 64,
        num_layers: int = 6,
        num_heads: int = 4,
        intermediate_size: int = 128,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embeddings = BertEmbeddings(vocab_size, hidden_size, max_positions)
        self.layer = nn.ModuleList(BertLayer(hidden_size, num_heads, intermediate_size) for _ in range(num_layers))
        self.highway: Any = nn.ModuleList(BertHighway(hidden_size, num_labels) for _ in range(num_layers))

    def get_extended_attention_mask(self, attention_mask: Tensor) -> Tensor:
        """Return what is added to the attention scores: a large negative number where there is padding."""
        extended_attention_mask = attention_mask[:, None, None, :].to(torch.get_default_dtype())
        return (1.0 - extended_attention_mask) * -10000.0


class HighwayException(Exception):
    """Leaves the encoder from whatever depth, and carries the answer."""

    def __init__(self, message: tuple[Tensor, list[Tensor]], exit_layer: int) -> None:
        self.message = message
        self.exit_layer = exit_layer  # starts from 1


class EntropyExitBert(EarlyExitBert):
    """Leaves after the first layer whose classifier is sure: the entropy of its softmax is under the threshold (DeeBERT)."""

    early_exit_entropy = 0.5

    def encode(self, hidden_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Run all layers; return the last answer and the entropies of the others.

        Raises
        ------
        HighwayException
            If an earlier answer is good enough.
        """
        all_entropies: list[Tensor] = []
        for i, layer_module in enumerate(self.layer):
            hidden_states = layer_module(hidden_states, attention_mask)
            logits = self.highway[i](hidden_states)
            if i + 1 < len(self.layer):
                highway_entropy = entropy(logits)
                all_entropies.append(highway_entropy)
                if highway_entropy < self.early_exit_entropy:
                    raise HighwayException((logits, all_entropies), i + 1)
        return logits, all_entropies

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple[Tensor, list[Tensor], int]:
        """Return the logits, the entropies of all classifiers that ran, and the number of layers that ran."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        extended_attention_mask = self.get_extended_attention_mask(attention_mask)
        exit_layer = len(self.layer)
        try:
            embedding_output = self.embeddings(input_ids, token_type_ids)
            outputs = self.encode(embedding_output, extended_attention_mask)
        except HighwayException as e:
            outputs = e.message
            exit_layer = e.exit_layer
        logits, all_entropies = outputs
        return logits, all_entropies, exit_layer


class PatienceBert(EarlyExitBert):
    """Leaves when the prediction has stayed the same for ``patience`` layers (PABEE)."""

    patience = 2

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> tuple[Tensor, int]:
        """Return the logits, and the number of layers that ran."""
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        extended_attention_mask = self.get_extended_attention_mask(attention_mask)
        hidden_states = self.embeddings(input_ids, token_type_ids)
        patient_counter = 0
        patient_result = None
        calculated_layer_num = 0
        for i in range(len(self.layer)):
            calculated_layer_num += 1
            hidden_states = self.layer[i](hidden_states, extended_attention_mask)
            logits = self.highway[i](hidden_states)
            if patient_result is not None:
                labels = logits.detach().argmax(dim=1)
                patient_labels = patient_result.detach().argmax(dim=1)
            if (patient_result is not None) and torch.all(labels.eq(patient_labels)):
                patient_counter += 1
            else:
                patient_counter = 0
            patient_result = logits
            if patient_counter == self.patience:
                break
        assert patient_result is not None
        return patient_result, calculated_layer_num
