# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What detectors do behind their network: boxes are filtered by score, chosen, decoded, and those that cover each other are left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from differential import check

import dycl_tvm

ops = pytest.importorskip("torchvision.ops")
detection = pytest.importorskip("torchvision.models.detection")

#: No, one, some and all of six boxes have scores above a half.
SCORES = [
    (torch.tensor(row),)
    for row in (
        [0.9, 0.1, 0.8, 0.2, 0.7, 0.7],
        [0.6, 0.7, 0.8, 0.9, 0.6, 0.7],
        [0.1] * 6,
        [0.9, 0.1, 0.1, 0.1, 0.1, 0.1],
        [0.1, 0.1, 0.1, 0.9, 0.8, 0.1],
    )
]


def found(scores):
    place = torch.stack([scores * 4, scores, scores * 4 + 3, scores * 2 + 5], 1)
    keep = scores > 0.5
    return place[keep], scores[keep]


def kept(scores):
    boxes, best = found(scores)
    i = ops.nms(boxes, best, 0.5)
    return boxes[i[:100]], best[i[:2]], i


def kept_by_class(scores):
    boxes, best = found(scores)
    return ops.batched_nms(boxes, best, (best * 10).long() % 2, 0.5)


def measured(scores):
    boxes, _ = found(scores)
    return (
        *(
            ops.clip_boxes_to_image(boxes, (4, 4)),
            boxes[ops.remove_small_boxes(boxes, 3.2)],
            ops.box_iou(boxes, torch.tensor([[0.0, 0.0, 2.0, 4.0]])),
        ),
        *(
            ops.box_convert(boxes, "xyxy", "cxcywh"),
            ops.box_area(boxes),
            ops.generalized_box_iou(boxes, torch.tensor([[0.0, 0.0, 2.0, 4.0]])),
        ),
    )


def read_from_an_image(scores):
    boxes, best = found(scores)
    image = torch.arange(6 * 64.0).reshape(2, 3, 8, 8) * best.sum()
    return ops.roi_align(image[:1], [boxes], (2, 2), sampling_ratio=2), ops.roi_align(image, [boxes, boxes[:1]], 2, 0.5, 2, True).sum()


PROGRAMS = [kept, kept_by_class, measured, read_from_an_image]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_boxes(program):
    check(program, SCORES)


def of_two_images(scores, others):
    """What heads do with the regions of a batch: they are computed together, and split again."""
    parts = [found(scores)[0], found(others)[0]]
    counts = [part.shape[0] for part in parts]
    together = torch.cat(parts)
    total = 0
    for count in counts:
        total += count
    codes = together * 2
    if total > 0:
        codes = codes.reshape(total, -1)
    boxes = torch.stack([together + codes, together - codes], 1)
    if total > 0:
        boxes = boxes.reshape(total, -1, 4)
    return boxes.split(counts, 0)


def resized(scores, size=(5, 7)):
    """Masks of as many objects as there are, as channels of an image."""
    boxes, best = found(scores)
    if not len(best):
        return torch.zeros(size)
    masks = boxes[:, :, None] * torch.arange(3.0) + best[:, None, None]
    return torch.nn.functional.interpolate(masks[None], size=size, mode="bilinear", align_corners=False)[0].argmax(0)


def pasted(scores):
    """What Mask R-CNN does: a mask is resized to its box, and the part of it that is in the image is put there."""
    image, box = torch.zeros(6, 8), (scores[:4] * 10).long() - 4
    box = torch.cat([box[:2], box[:2] + box[2:]])
    width, height = max(int(box[2] - box[0] + 1), 1), max(int(box[3] - box[1] + 1), 1)
    mask = torch.nn.functional.interpolate(scores.view(1, 1, 2, 3), size=(height, width), mode="bilinear", align_corners=False)[0][0]
    left, right, top, end = max(box[0], 0), min(box[2] + 1, 8), max(box[1], 0), min(box[3] + 1, 6)
    image[top:end, left:right] = mask[(top - box[1]) : (end - box[1]), (left - box[0]) : (right - box[0])]
    return image


def test_masks_of_the_size_of_their_boxes():
    check(pasted, [(torch.rand(6, generator=torch.Generator().manual_seed(k)),) for k in range(12)], max_length=20)


def test_a_batch():
    check(of_two_images, [(a, b) for (a,), (b,) in zip(SCORES, [*SCORES[2:], *SCORES[:2]])])


def test_masks_of_as_many_objects_as_there_are():
    check(resized, SCORES, paths=2)


class Backbone(torch.nn.Module):
    out_channels = 32

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 32, 3, stride=8, padding=1)

    def forward(self, x):
        return {"0": self.conv(x)}


def _anchors():
    return detection.anchor_utils.AnchorGenerator(((16,),), ((1.0,),))


class OfLevels(torch.nn.Module):
    """Behind a network whose results are of two levels."""

    names = ("cls_logits", "bbox_regression")

    def __init__(self, net):
        super().__init__()
        self.net = net.eval()

    def forward(self, boxes, *heads):
        half = boxes.shape[0] // 2
        levels = {name: [head[:, :half], head[:, half:]] for name, head in zip(self.names, heads)}
        return self.net.postprocess_detections(levels, [[boxes[:half], boxes[half:]]], [(32, 32)])


class OfFcos(OfLevels):
    names = (*OfLevels.names, "bbox_ctrness")


class OfSsd(OfLevels):
    def forward(self, boxes, logits, regression):
        return self.net.postprocess_detections({"cls_logits": logits, "bbox_regression": regression}, [boxes], [(32, 32)])


class OfProposals(OfLevels):
    def forward(self, boxes, logits):
        return self.net.filter_proposals(boxes[None], logits[0], [(32, 32)], [10, 6])


def _retinanet():
    net = detection.RetinaNet(Backbone(), 4, anchor_generator=_anchors(), score_thresh=0.5, topk_candidates=20, detections_per_img=10)
    return OfLevels(net), (4, 4)


def _fcos():
    net = detection.FCOS(Backbone(), 4, anchor_generator=_anchors(), score_thresh=0.5, topk_candidates=20, detections_per_img=10)
    return OfFcos(net), (4, 4, 1)


def _ssd():
    boxes = detection.anchor_utils.DefaultBoxGenerator([[2]])
    head = detection.ssd.SSDHead([32], boxes.num_anchors_per_location(), 4)
    net = detection.ssd.SSD(Backbone(), boxes, (32, 32), 4, head=head, score_thresh=0.3, topk_candidates=6, detections_per_img=10)
    return OfSsd(net), (4, 4)


def _proposals():
    numbers = [{"training": n, "testing": n} for n in (8, 5)]
    rpn = detection.rpn
    net = rpn.RegionProposalNetwork(_anchors(), rpn.RPNHead(8, 1), 0.7, 0.3, 10, 0.5, *numbers, 0.7, score_thresh=0.4)
    return OfProposals(net), (1,)


def _inputs(channels):
    for seed, bias in enumerate((0.0, 0.5, -1.0, -20.0, 3.0)):
        noise = torch.Generator().manual_seed(seed)
        corner = torch.rand(16, 2, generator=noise) * 24
        heads = [torch.randn(1, 16, n, generator=noise) for n in channels]
        yield torch.cat([corner, corner + 8], 1), heads[0] + bias, *[h.abs() * 0.3 for h in heads[1:]]


@pytest.mark.parametrize("made", [_retinanet, _fcos, _ssd, _proposals], ids=lambda f: f.__name__)
def test_detectors(made):
    net, channels = made()
    check(net, list(_inputs(channels)))


def corners(x):
    y = x.clone()
    y[..., 0] = x[..., 0] - x[..., 2] / 2
    y[..., 1] = x[..., 1] - x[..., 3] / 2
    y[..., 2] = x[..., 0] + x[..., 2] / 2
    y[..., 3] = x[..., 1] + x[..., 3] / 2
    return y


def suppressed(prediction, conf_thres=0.3, iou_thres=0.45, max_nms=12, max_det=6, multi_label=False, masks=0):
    """What is done with the predictions of YOLO's networks, image by image."""
    classes = prediction.shape[2] - 5 - masks
    candidates = prediction[..., 4] > conf_thres
    output = [torch.zeros((0, 6 + masks))] * prediction.shape[0]
    for index, x in enumerate(prediction):
        x = x[candidates[index]]
        if not x.shape[0]:
            continue
        x[:, 5:] *= x[:, 4:5]
        box, mask = corners(x[:, :4]), x[:, 5 + classes :]
        if multi_label:
            i, j = (x[:, 5 : 5 + classes] > conf_thres).nonzero(as_tuple=False).T
            x = torch.cat((box[i], x[i, 5 + j, None], j[:, None].float(), mask[i]), 1)
        else:
            conf, j = x[:, 5 : 5 + classes].max(1, keepdim=True)
            x = torch.cat((box, conf, j.float(), mask), 1)[conf.view(-1) > conf_thres]
        if not x.shape[0]:
            continue
        x = x[x[:, 4].argsort(descending=True)[:max_nms]]
        i = ops.nms(x[:, :4] + x[:, 5:6] * 7680, x[:, 4], iou_thres)
        output[index] = x[i[:max_det]]
    return output


@pytest.mark.parametrize("options", [{}, {"multi_label": True, "masks": 2}], ids=["one class", "several and masks"])
def test_suppression_of_boxes(options):
    """No, one, some and more boxes than are kept, in one image or both."""
    inputs = []
    for seed, scale in enumerate((1.0, 0.35, 0.0, 0.6, 1.0)):
        noise = torch.Generator().manual_seed(seed)
        place, score = torch.rand(2, 16, 4, generator=noise) * 20, torch.rand(2, 16, 4 + options.get("masks", 0), generator=noise)
        score[1] *= scale if seed < 4 else 0.0
        inputs.append((torch.cat([place, score * (scale if seed != 1 else 0.75)], 2),))
    kept = [[len(found) for found in suppressed(*given, **options)] for given in inputs]
    assert 0 in kept[2] and kept[4][1] == 0 < kept[4][0] and max(map(max, kept)) == 6
    check(lambda x: suppressed(x, **options), inputs, paths=3)


def test_built(tmp_path: Path) -> None:
    net, channels = _retinanet()
    inputs = list(_inputs(channels))
    artifact = dycl_tvm.build(net, inputs[0])
    artifact.export_library(tmp_path / "net.so")
    artifact.save_params(tmp_path / "net.params")
    call = dycl_tvm.load(tmp_path / "net.so", tmp_path / "net.params")
    for given in [*inputs, *reversed(inputs)]:
        leaves = [torch.utils._pytree.tree_leaves(f(*given)) for f in (net, call)]
        for want, got in zip(*leaves, strict=True):
            torch.testing.assert_close(torch.as_tensor(got), want)
