# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Show, attend and tell: an image goes in, words come out one by one until the end word."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """A convolutional trunk, pooled to a fixed grid, channels last."""

    def __init__(self, trunk: nn.Module, grid: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.adaptive_pool = nn.AdaptiveAvgPool2d((grid, grid))

    def forward(self, images: Tensor) -> Tensor:
        """Return features of shape (batch, grid, grid, channels)."""
        out = self.trunk(images)
        out = self.adaptive_pool(out)
        return out.permute(0, 2, 3, 1)


class Attention(nn.Module):
    """Additive soft attention over the places of the image."""

    def __init__(self, encoder_dim: int, decoder_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.encoder_att = nn.Linear(encoder_dim, attention_dim)
        self.decoder_att = nn.Linear(decoder_dim, attention_dim)
        self.full_att = nn.Linear(attention_dim, 1)
        self.relu = nn.ReLU()
        self.softmax = nn.Softmax(dim=1)

    def forward(self, encoder_out: Tensor, decoder_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted features and the weights."""
        att1 = self.encoder_att(encoder_out)
        att2 = self.decoder_att(decoder_hidden)
        att = self.full_att(self.relu(att1 + att2.unsqueeze(1))).squeeze(2)
        alpha = self.softmax(att)
        attention_weighted_encoding = (encoder_out * alpha.unsqueeze(2)).sum(dim=1)
        return attention_weighted_encoding, alpha


class ShowAttendTell(nn.Module):
    """Captioning of one image, with greedy decoding.

    Parameters
    ----------
    trunk : nn.Module
        Convolutional encoder.
    encoder_dim : int
        Its channels.
    vocab_size : int
        Number of words; the last two are the start word and the end word.
    attention_dim, embed_dim, decoder_dim : int
        Widths of the attention, of the word embedding and of the LSTM.
    grid : int
        Places to attend to, along each side.
    max_steps : int
        The longest caption.
    """

    def __init__(
        self,
        trunk: nn.Module,
        encoder_dim: int,
        vocab_size: int = 2633,
        attention_dim: int = 512,
        embed_dim: int = 512,
        decoder_dim: int = 512,
        grid: int = 14,
        max_steps: int = 20,
    ) -> None:
        super().__init__()
        self.start_word = vocab_size - 2
        self.end_word = vocab_size - 1
        self.max_steps = max_steps
        self.encoder = Encoder(trunk, grid)
        self.attention = Attention(encoder_dim, decoder_dim, attention_dim)
        self.embedding = nn.Embedding(vocab_size, embed_dim)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim)
        self.init_h = nn.Linear(encoder_dim, decoder_dim)
        self.init_c = nn.Linear(encoder_dim, decoder_dim)
        self.f_beta = nn.Linear(decoder_dim, encoder_dim)
        self.sigmoid = nn.Sigmoid()
        self.fc = nn.Linear(decoder_dim, vocab_size)

    def init_hidden_state(self, encoder_out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the LSTM's state before the first word."""
        mean_encoder_out = encoder_out.mean(dim=1)
        return self.init_h(mean_encoder_out), self.init_c(mean_encoder_out)

    def forward(self, image: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the words (each of shape [1]) without the end word, and where the network looked for each."""
        encoder_out = self.encoder(image)
        encoder_out = encoder_out.reshape(encoder_out.size(0), -1, encoder_out.size(3))
        h, c = self.init_hidden_state(encoder_out)

        word = torch.tensor([self.start_word])
        words: list[Tensor] = []
        alphas: list[Tensor] = []
        for _ in range(self.max_steps):
            awe, alpha = self.attention(encoder_out, h)
            gate = self.sigmoid(self.f_beta(h))
            awe = gate * awe
            h, c = self.decode_step(torch.cat([self.embedding(word), awe], dim=1), (h, c))
            scores = self.fc(h)
            word = torch.argmax(scores, dim=1)
            if word == self.end_word:
                return words, alphas
            words.append(word)
            alphas.append(alpha)
        return words, alphas
