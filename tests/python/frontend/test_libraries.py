# Licensed under the Apache License, Version 2.0; see LICENSE.
"""Models of public libraries, unedited, in small configurations with random weights. Each needs its library to be installed."""

from __future__ import annotations

import copy
import types

import pytest
import torch
from differential import stage

import dycl_tvm
from dycl_tvm.errors import UnsupportedError
from dycl_tvm.verify.same import difference

IDS = [torch.randint(3, 60, (1, 6), generator=torch.Generator().manual_seed(k)) for k in range(3)]
IMAGES = [torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(k)) for k in range(2)]
SMALL = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
DECODER = {"num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def compare(model, calls):
    """Compare a model with what was staged of it, in calls one after the other; return that."""
    eager, graph = copy.deepcopy(model), stage(model, calls[0])
    staged = graph.interpret()
    with torch.no_grad():
        for args in (calls[0], *calls):
            assert difference(eager(*copy.deepcopy(args)), staged(*copy.deepcopy(args))) is None
    return graph


@pytest.mark.parametrize(
    "name, options",
    [
        ("LlamaForCausalLM", DECODER),
        ("MixtralForCausalLM", {**DECODER, "num_local_experts": 4}),
        ("BertForSequenceClassification", {}),
        ("DebertaV2ForSequenceClassification", {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    ],
)
def test_transformers(name, options):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = getattr(transformers, name)
    compare(model(model.config_class(**SMALL, **options)).eval(), [(ids,) for ids in IDS])


@pytest.mark.parametrize(
    "name, options, experts, blocks",
    [
        ("MixtralForCausalLM", {"num_local_experts": 4}, "eager", 25),
        ("MixtralForCausalLM", {"num_local_experts": 9, "num_experts_per_tok": 1}, "eager", 25),
        ("MixtralForCausalLM", {"num_local_experts": 4}, "batched_mm", 1),
        ("MixtralForCausalLM", {"num_local_experts": 4}, "grouped_mm", 1),
        ("OlmoeForCausalLM", {"num_experts": 5, "num_experts_per_tok": 2, "num_hidden_layers": 4}, "eager", 49),
    ],
)
def test_experts(name, options, experts, blocks):
    """The loop over the experts that were hit is one for any number of them, in each layer."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = getattr(transformers, name)
    config = model.config_class(**{**SMALL, **DECODER, **options})
    config._experts_implementation = experts
    one = torch.full((1, 6), 7)  # all tokens go the same way
    graph = compare(model(config).eval(), [(ids,) for ids in (*IDS, one)])
    assert len(graph.blocks) <= blocks


def test_transformers_of_images():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.SwinConfig(image_size=64, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4)
    compare(transformers.SwinForImageClassification(config).eval(), [(x,) for x in IMAGES])


def gpt2(layers):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"vocab_size": 60, "n_positions": 64, "n_embd": 16, "n_layer": layers, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return transformers.GPT2LMHeadModel(config).eval()


def test_generate_rolls_the_loop_of_the_decoder():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **{**DECODER, "pad_token_id": None})).eval()
    graph = stage(lambda ids: model.generate(ids, max_new_tokens=40, do_sample=False), (IDS[0],))
    assert sum(block.name.startswith("loop") for block in graph.blocks) == 1
    call, lengths = graph.interpret(), set()
    for seed in range(8):
        ids = torch.randint(3, 60, (1, 6), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            want = model.generate(ids, max_new_tokens=40, do_sample=False)
        assert torch.equal(want, call(ids))
        lengths.add(want.shape[1])
    assert len(lengths) > 1, "the prompts have to end after different numbers of tokens"


def test_generate_with_a_mask():
    model = gpt2(1)
    padded = [ids.clone() for ids in (*IDS, *IDS[:2])]
    padded[1][:, :2], padded[2][:, :1], padded[3][:, :5] = 0, 0, 0
    calls = [(ids, (ids > 0).long()) for ids in padded]
    compare(lambda ids, mask: model.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False), calls)


def test_generate_with_beams():
    """Texts end early, late and never, and have one return site."""
    model = gpt2(1)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8)
    model.generation_config.eos_token_id = 41
    ids = [torch.randint(3, 60, (2, 4), generator=torch.Generator().manual_seed(k)) for k in range(4)]

    def generate(ids):
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, num_beams=2)

    graph = stage(generate, (ids[0],))
    assert (len(graph.return_sites()), sum(block.name.startswith("loop") for block in graph.blocks)) == (1, 1)
    compare(generate, [(i,) for i in ids])


def test_generate_with_a_processor_and_a_criterion_of_the_user():
    """Their code runs in the decoder's loop, within a context manager of the library's: what it may raise is part of the loop."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")

    class OtherThanTheLast(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores = scores.clone()
            scores[:, input_ids[0, -1]] = -float("inf")
            return scores

    class EndsInSeven(transformers.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return input_ids[:, -1] % 10 == 7

    model = gpt2(1)
    own = {
        "logits_processor": transformers.LogitsProcessorList([OtherThanTheLast()]),
        "stopping_criteria": transformers.StoppingCriteriaList([EndsInSeven()]),
    }

    def generate(ids):
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, repetition_penalty=1.2, do_sample=False, **own)

    graph = compare(generate, [(ids,) for ids in IDS])
    assert sum(block.name.startswith("loop") for block in graph.blocks) == 1
    lengths = {generate(ids).shape[1] for ids in IDS}
    assert len(lengths) > 1, "the texts have to end after different numbers of tokens"


def test_generate_with_a_static_cache():
    """The mask is padded to the cache's length, but for the last token: the loop is rolled all the same."""
    model, eager = gpt2(1), gpt2(1)
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": "static"}
    graph = stage(lambda ids: model.generate(ids, **options), (IDS[0],))
    assert any(block.name.startswith("loop") for block in graph.blocks)
    with torch.no_grad():
        assert all(torch.equal(eager.generate(ids, **options), graph.interpret()(ids)) for ids in IDS)


def test_positions_behind_a_static_cache():
    """A static cache's length is a tensor, from which positions are counted."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    embedding = transformers.models.trocr.modeling_trocr.TrOCRLearnedPositionalEmbedding(16, 4)
    compare(lambda ids, length: embedding(ids, length), [(ids, torch.tensor(k)) for k, ids in enumerate(IDS)])


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
def test_caches_come_in_and_out(kind):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = gpt2(2)
    cache = transformers.DynamicCache() if kind == "DynamicCache" else transformers.StaticCache(config=model.config, max_cache_len=16)

    def step(ids, cache):
        out = model(ids, past_key_values=cache, use_cache=True)
        return out.logits, out.past_key_values

    with torch.no_grad():
        step(IDS[0][:, :3], cache)
        call = stage(step, (IDS[0][:, 3:4], copy.deepcopy(cache))).interpret()
        theirs, mine = copy.deepcopy(cache), copy.deepcopy(cache)
        for ids in IDS[: 1 if kind == "DynamicCache" else 3]:
            (want, theirs), (got, mine) = step(ids[:, :1], theirs), call(ids[:, :1], mine)
            assert type(mine) is type(theirs) and difference(want, got) is None
            assert difference(theirs.get_seq_length(), mine.get_seq_length()) is None
            for a, b in zip(theirs.layers, mine.layers, strict=True):
                assert type(a) is type(b) and difference((a.keys, a.values), (b.keys, b.values)) is None


def test_generate():
    model = gpt2(2)

    def generate(ids):
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=2, do_sample=False)

    compare(generate, [(ids,) for ids in IDS])


@pytest.mark.parametrize("name", ["levit_128s", "convnext_atto"])
def test_timm(name):
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=10).eval()
    size = model.pretrained_cfg["input_size"][-1] if name != "convnext_atto" else 64
    compare(model, [(torch.randn(1, 3, size, size),) for _ in range(2)])


def test_kornia():
    kornia = pytest.importorskip("kornia", reason="kornia is not installed")

    def f(x):
        edges = kornia.filters.sobel(x)
        return edges * 2 if edges.mean() > 0.2 else kornia.geometry.transform.rotate(x, torch.tensor([30.0]))

    compare(f, [(x.abs().clamp(max=scale),) for x, scale in zip(IMAGES, (1.0, 0.1))])


def test_conditional_random_fields():
    torchcrf = pytest.importorskip("torchcrf", reason="pytorch-crf is not installed")
    torch.manual_seed(0)
    crf = torchcrf.CRF(4, batch_first=True).eval()
    compare(lambda emissions: crf.decode(emissions), [(torch.randn(2, 5, 4) * s,) for s in (1.0, 3.0)])


def test_solvers():
    torchdiffeq = pytest.importorskip("torchdiffeq", reason="torchdiffeq is not installed")
    times = torch.linspace(0, 1, 4)
    compare(lambda y: torchdiffeq.odeint(lambda t, y: torch.tanh(y) * (1 + t), y, times, method="rk4"), [(torch.randn(2, 3),)])


@pytest.mark.parametrize("method", ["dopri5", "bosh3"])
def test_adaptive_solvers(method):
    """One loop for each time that is asked for, in which a step is taken or made smaller; a step is a tensor's test, or a bool."""
    torchdiffeq = pytest.importorskip("torchdiffeq", reason="torchdiffeq is not installed")
    times, calls = torch.linspace(0, 1, 3), [(torch.randn(2, 3, generator=torch.Generator().manual_seed(k)) * 4**k,) for k in range(3)]

    def solve(y):
        return torchdiffeq.odeint(lambda t, y: torch.sin(3 * y) * (1 + t), y, times, method=method, rtol=1e-3, atol=1e-4)

    assert len(compare(solve, calls).return_sites()) == 1


def _boxes(k):
    boxes = torch.rand(4, 4, generator=torch.Generator().manual_seed(k)) * 40
    return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)


def _offsets(x):
    """Return where the windows of 2 by 2 of two groups of channels are moved to."""
    return torch.cat([x, x.flip(1), x.flip(2), x.flip(3)], 1)[:, :, ::2, ::2][:, :, :8, :8] * 2


REGIONS = {
    "roi_align": lambda ops, x, boxes: ops.roi_align(x, [boxes], (3, 2), 0.5, 2),
    "roi_align, aligned": lambda ops, x, boxes: ops.roi_align(x, [boxes], 3, 0.25, 3, aligned=True),
    "roi_align, as many samples as pixels": lambda ops, x, boxes: ops.roi_align(x, [boxes], (3, 2), 0.5),
    "ps_roi_align, as many samples as pixels": lambda ops, x, boxes: ops.ps_roi_align(x, [boxes], 2, 0.7),
    "ps_roi_align": lambda ops, x, boxes: ops.ps_roi_align(x, [boxes], 2, 0.5, 2),
    "deform_conv2d": lambda ops, x, boxes: ops.deform_conv2d(
        x, _offsets(x), boxes.reshape(4, 2, 2, 1).repeat(1, 2, 1, 2) / 40, stride=2, mask=x.repeat(1, 2, 1, 1)[:, :, ::2, ::2]
    ),
}


@pytest.mark.parametrize("name", REGIONS)
def test_regions_of_images(name):
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed, or does not load beside this PyTorch")
    images = [torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    compare(lambda x, boxes: REGIONS[name](ops, x, boxes), [(x, _boxes(k)) for k, x in enumerate(images)])


def test_offsets_of_other_windows_are_an_error():
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed, or does not load beside this PyTorch")
    x, weight = torch.zeros(1, 2, 8, 8), torch.zeros(2, 2, 3, 2)
    for width, mask in ((8, None), (7, torch.zeros(1, 6, 7, 6))):
        offset = torch.zeros(1, 12, 6, width)
        for run in (ops.deform_conv2d, lambda *args: stage(ops.deform_conv2d, args)):
            with pytest.raises((RuntimeError, UnsupportedError)):
                run(x, offset, weight, None, 1, 0, 1, mask)


def test_boxes_that_are_kept():
    """As many boxes come out as do not cover each other."""
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed, or does not load beside this PyTorch")
    boxes = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3.5], [1, 1, 9, 9], [8, 8, 9, 9], [0, 0, 4, 4]])
    scores = [torch.rand(5, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    calls = [(boxes + shift, s) for shift, s in zip((0, 3, 0), scores)] + [(boxes[:1].expand(5, 4), scores[0])]
    compare(lambda b, s: (ops.nms(b, s, 0.3), b[ops.batched_nms(b, s, torch.tensor([0, 0, 1, 1, 0]), 0.5)]), calls)


VITS = {
    **{"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "flow_size": 8},
    **{"spectrogram_bins": 9, "upsample_initial_channel": 16, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4]},
    **{"resblock_kernel_sizes": [3, 5], "resblock_dilation_sizes": [[1, 3], [1, 3]], "depth_separable_num_layers": 1},
    **{"duration_predictor_flow_bins": 4, "duration_predictor_num_flows": 2, "duration_predictor_filter_channels": 16},
    **{"prior_encoder_num_flows": 2, "prior_encoder_num_wavenet_layers": 2, "posterior_encoder_num_wavenet_layers": 1},
}


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_speech_of_a_predicted_length(stochastic, batch):
    """The noise is as long as the predicted durations together, so as many numbers are drawn as eager draws."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = transformers.VitsModel(transformers.VitsConfig(**VITS, use_stochastic_duration_prediction=stochastic)).eval()
    ids = [torch.randint(1, 20, (batch, 6), generator=torch.Generator().manual_seed(k)) for k in range(4)]
    with pytest.raises(UnsupportedError, match="max_length"):
        stage(model, (ids[0],))
    call, lengths = stage(model, (ids[0],), max_length=600).interpret(), set()
    for seed, x in enumerate([*ids, ids[0]]):
        torch.manual_seed(seed)
        call.manual_seed(seed)
        for _ in range(2):
            with torch.no_grad():
                want, got = model(x), call(x)
            assert difference(want, got) is None
            lengths.add(want.waveform.shape[1])
    assert len(lengths) > 2


def test_keypoints_of_an_image():
    """How many points there are, and where their descriptors are read, the image decides: none, some, as many as are taken."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"encoder_hidden_sizes": [4, 4, 8, 8], "decoder_hidden_size": 8, "descriptor_decoder_dim": 8}
    config = transformers.SuperPointConfig(**sizes, keypoint_threshold=0.05, max_keypoints=9, nms_radius=1, border_removal_distance=1)
    model = transformers.SuperPointForKeypointDetection(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=(2 / weight[0].numel()) ** 0.5 if weight.dim() > 1 else 0.1)
    images = [torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(k)) * 2 * k for k in range(4)]
    with torch.no_grad():
        found = {model(image).keypoints.shape[1] for image in images}
    assert {0, 9} <= found and len(found) > 2
    graph = compare(model, [(image,) for image in images])
    assert len(graph.blocks) <= 7


def test_matching_of_points_that_are_pruned():
    """Points of two images, of which layers leave out those that have no match; the network ends after the layer that is sure."""
    feature = pytest.importorskip("kornia.feature", reason="kornia is not installed")
    torch.manual_seed(1)
    confidence = {"depth_confidence": 0.5, "width_confidence": 0.7, "filter_threshold": 0.0}
    model = feature.LightGlue(None, input_dim=8, descriptor_dim=8, num_heads=1, n_layers=2, flash=False, **confidence).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=(2 / weight[0].numel()) ** 0.5 if weight.dim() > 1 else 0.1)
    torch.nn.init.normal_(model.token_confidence[0].token[0].weight, std=2.0)

    def match(points, descriptors, others, of_others):
        size = torch.tensor([[48, 48]])
        first = {"keypoints": points, "descriptors": descriptors, "image_size": size}
        return model({"image0": first, "image1": {"keypoints": others, "descriptors": of_others, "image_size": size}})

    calls = []
    for k in range(6):
        noise = torch.Generator().manual_seed(k)
        calls.append(
            tuple(made for n in (6, 5) for made in (torch.rand(1, n, 2, generator=noise) * 48, torch.randn(1, n, 8, generator=noise)))
        )
    with torch.no_grad():
        results = [match(*call) for call in calls]
    assert {r["stop"] for r in results} == {1, 2}
    assert len({r["log_assignment"].shape for r in results}) > 2
    compare(match, calls)


def lightglue(layers):
    """Return transformers' LightGlue: what its layers are sure of, and how many points they prune, differs with the input."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    sizes = {"encoder_hidden_sizes": [4, 4, 8, 8], "decoder_hidden_size": 8, "descriptor_decoder_dim": 8}
    points = transformers.SuperPointConfig(**sizes, keypoint_threshold=0.05, max_keypoints=6, nms_radius=1, border_removal_distance=1)
    options = {"descriptor_dim": 8, "num_hidden_layers": layers, "num_attention_heads": 1, "attn_implementation": "eager"}
    confidence = {"depth_confidence": 0.35, "width_confidence": 0.5, "filter_threshold": 0.0}
    config = transformers.LightGlueConfig(keypoint_detector_config=points, **options, **confidence)
    model = transformers.LightGlueForKeypointMatching(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=(2 / weight[0].numel()) ** 0.5 if weight.dim() > 1 else 0.1)
    for layer in model.token_confidence:
        torch.nn.init.normal_(layer.token.weight, std=2.0)
    return model


def test_pairs_of_images_each_of_which_ends_by_itself():
    """A pair leaves the batch after the layer that is sure of it, and each layer leaves out points of those that stay."""
    model, calls, ends, pruned = lightglue(3), [], set(), 0

    def match(points, descriptors, mask):
        return model._match_image_pair(points, descriptors, 48, 48, mask=mask)[:3]

    for k in range(10):
        noise = torch.Generator().manual_seed(k)
        mask = (torch.arange(6) < torch.tensor([6, 6 - 2 * (k % 2)])[:, None]).int().expand(2, 2, 6)
        call = (torch.rand(2, 2, 6, 2, generator=noise) * 48, torch.randn(2, 2, 6, 8, generator=noise), mask)
        try:
            with torch.no_grad():
                layers = match(*call)[2]
        except IndexError:  # one pair is left for the last layer, for which the model itself has too long a mask
            continue
        calls.append(call)
        ends |= set(layers.amax((1, 2)).tolist())
        pruned += int((layers.amin((1, 2)) < layers.amax((1, 2))).sum())
    assert ends == {1, 2, 3} and pruned > 2
    compare(match, calls)


def test_images_whose_points_are_found_and_matched():
    """The whole network: none, one or all of the points that there may be in each image."""
    calls = [(torch.rand(1, 2, 3, 16, 16, generator=torch.Generator().manual_seed(k)) * 2 * (1 + k % 6),) for k in (1, 6, 12, 0)]
    model = lightglue(2)
    with torch.no_grad():
        found = {tuple(model(*call).mask.sum(-1).flatten().tolist()) for call in calls}
    assert len(found) > 2
    compare(model, calls)


CONFORMERS = {
    "Wav2Vec2ConformerModel": {
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "conv_dim": (8, 8)},
        **{"conv_stride": (5, 4), "conv_kernel": (10, 4), "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2},
        **{"conv_depthwise_kernel_size": 5, "max_source_positions": 100},
    },
    "ParakeetEncoder": {
        **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "conv_kernel_size": 5},
        **{"subsampling_factor": 4, "subsampling_conv_channels": 8, "num_mel_bins": 16, "max_position_embeddings": 64},
    },
}


@pytest.mark.parametrize(
    "name, options", [*((n, {}) for n in CONFORMERS), ("Wav2Vec2ConformerModel", {"position_embeddings_type": "rotary"})]
)
def test_conformers(name, options):
    """Time is open, and a mask says how long each sequence is."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    model = getattr(transformers, name)
    model = model(model.config_class(**CONFORMERS[name], **options)).eval()
    tail = (16,) if name == "ParakeetEncoder" else ()
    most, calls = 200, []
    time = dycl_tvm.Dim("T", min=60, max=most)
    for n, less in ((most, 60), (61, 0), (133, 70)):
        x = torch.randn(2, n, *tail, generator=torch.Generator().manual_seed(n))
        calls.append((x, (torch.arange(n) < torch.tensor([[n], [n - less]])).long()))

    def run(x, mask):
        return model(x, attention_mask=mask)[0]

    call = stage(run, calls[0], dynamic_shapes=({1: time}, {1: time})).interpret()
    with torch.no_grad():
        assert all(difference(run(*copy.deepcopy(given)), call(*given)) is None for given in calls)


@pytest.mark.parametrize("fused, queries", [(None, 3), ({1}, 2)])
def test_segments_of_an_image(fused, queries):
    """As many masks are resized as objects were found: none, one, several; those of a label of ``fused`` are one segment."""
    processing = pytest.importorskip("transformers.models.detr.image_processing_detr", reason="transformers is not installed")
    processor = object.__new__(processing.DetrImageProcessor)

    def segments(logits, masks):
        outputs = types.SimpleNamespace(logits=logits, pred_masks=masks)
        if fused is None:
            return processor.post_process_instance_segmentation(outputs, 0.3, 0.3, 0.1, target_sizes=[(12, 16)])
        return processor.post_process_panoptic_segmentation(outputs, 0.3, 0.3, 0.1, fused)

    calls = []
    for k, bias in enumerate((0.0, 6.0, -6.0, 2.0, -3.0, 1.0)):
        noise = torch.Generator().manual_seed(k)
        logits = torch.randn(1, queries, 4, generator=noise) * 3
        logits[..., -1] += bias
        calls.append((logits, torch.randn(1, queries, 6, 8, generator=noise) * 4))
    assert len({len(segments(*call)[0]["segments_info"]) for call in calls}) > 2
    compare(segments, calls)
