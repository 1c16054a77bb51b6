"""PaddleClas and PaddleViT files, compared with a reference forward pass that does not need Paddle.

`benchmarks.paddle_parity` does the same with Paddle, which is too large a dependency. Two files written by Paddle are
stored here with its outputs (see `PADDLE`)."""

import base64
import dataclasses
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import vitreous
from paddle_reference import (
    CLAS,
    CLASSES,
    DEPTH,
    HEADS,
    IMAGE,
    LAYOUTS,
    MLP,
    NAMES,
    PATCH,
    VIT,
    WIDTH,
    loaded,
    reference,
    saved,
    state,
)
from parity import TOLERANCE, check_close, check_identical, noisy
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    IMAGENET,
    Gelu,
    GlobalAverage,
    Learned1d,
    Preprocessing,
    ResNetStem,
    SinCos2d,
    SwiGlu,
    TanhHead,
)
from vitreous.model.vit import ViT
from vitreous.weights.convert import UnsupportedByFormat
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.paddle import Paddle, PaddleViT
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.native import provenance_of

# ---- Reading ---------------------------------------------------------------------------------------------------------

READ: dict[str, tuple[str, dict[str, Any], float]] = {
    "PaddleClas": ("paddle", {}, 1e-6),
    "PaddleClas, a tutorial's defaults": ("paddle", {"bias": False}, 1e-5),
    "PaddleClas, distilled": ("paddle", {"distilled": True}, 1e-6),
    "PaddleClas, no classifier": ("paddle", {"classes": 0}, 1e-6),
    "PaddleViT": ("paddlevit", {}, 1e-6),
    "PaddleViT, no bias": ("paddlevit", {"bias": False}, 1e-6),
    "PaddleViT, distilled": ("paddlevit", {"distilled": True}, 1e-6),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", READ)
def test_outputs_equal_reference(case: str, tmp_path: Path) -> None:
    format, options, eps = READ[case]
    tensors = state(LAYOUTS[format], **options)
    model = loaded(saved(tensors, tmp_path / "a.pdparams"))
    assert provenance_of(model)["format"] == format
    assert (model.config.norm_eps, model.config.num_heads) == (eps, HEADS)
    check_close(model, lambda images: reference(tensors, LAYOUTS[format], images, eps), (IMAGE, IMAGE))


def test_head_dim_is_read(tmp_path: Path) -> None:
    tensors = state(VIT, inner=80)
    model = loaded(saved(tensors, tmp_path / "a.pdparams"), overrides={"num_heads": HEADS})
    assert model.config.head_dim == 40
    check_close(model, lambda images: reference(tensors, VIT, images, 1e-6), (IMAGE, IMAGE))


def test_scale_and_eps_can_be_overridden(tmp_path: Path) -> None:
    tensors = state(CLAS)
    given = {"qk_scale": 0.3, "norm_eps": 1e-3}
    model = loaded(saved(tensors, tmp_path / "a.pdparams"), overrides=given)
    check_close(model, lambda images: reference(tensors, CLAS, images, 1e-3, 0.3), (IMAGE, IMAGE))


def test_names_of_2021_are_read(tmp_path: Path) -> None:
    tensors = state(VIT)
    older = dict(tensors)
    older["patch_embedding.cls_token"] = older.pop("cls_token")
    older["patch_embedding.position_embeddings"] = older.pop("position_embedding")
    new = loaded(saved(tensors, tmp_path / "new.pdparams"))
    check_identical(loaded(saved(older, tmp_path / "old.pdparams")), new)


@pytest.mark.parametrize("format", LAYOUTS)
def test_positions_are_resampled_bicubically(format: str, tmp_path: Path) -> None:
    """Both use bicubic resampling; for PaddleClas, which cannot resample, it is antialiased as in timm."""
    tensors, layout, size = state(LAYOUTS[format]), LAYOUTS[format], (24, 16)
    model = loaded(saved(tensors, tmp_path / "a.pdparams"), image_size=size)
    table = tensors[layout.position][0, 1:].mT.reshape(1, WIDTH, IMAGE // PATCH, IMAGE // PATCH)
    table = F.interpolate(table, (size[0] // PATCH, size[1] // PATCH), mode="bicubic", antialias=format == "paddle")
    there = tensors | {layout.position: torch.cat([tensors[layout.position][:, :1], table.flatten(2).mT], dim=1)}
    check_close(model, lambda images: reference(there, layout, images, 1e-6), size)


def shapes_of(width: int, depth: int, mlp: int, bias: bool, image: int = 224) -> StateDict:
    """Return the tensor shapes of a full-size PaddleClas model."""
    shapes = {"patch_embed.proj.weight": (width, 3, 16, 16), "pos_embed": (1, (image // 16) ** 2 + 1, width)}
    for i in range(depth):
        shapes |= {f"blocks.{i}.norm1.weight": (width,), f"blocks.{i}.attn.qkv.weight": (width, 3 * width)}
        shapes |= {f"blocks.{i}.mlp.fc1.weight": (width, mlp), f"blocks.{i}.mlp.fc2.weight": (mlp, width)}
    shapes |= {"cls_token": (1, 1, width), "head.weight": (width, 1000)}
    shapes |= {f"blocks.{i}.attn.qkv.bias": (3 * width,) for i in range(depth) if bias}
    return StateDict(Path("x.pdparams"), {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})


def inferred(found: StateDict) -> tuple[dict[str, Any], list[str]]:
    builder = ConfigBuilder(found, {})
    assert Paddle().recognises(found)
    Paddle().infer(found, builder)
    return builder.fields, builder.assumed


def test_paddleclas_vit_small_is_detected_by_shape() -> None:
    fields, assumed = inferred(shapes_of(768, 8, 2304, bias=False))
    assert (fields["num_heads"], fields["qk_scale"], fields["norm_eps"]) == (8, 768**-0.5, 1e-5)
    assert sum(line.startswith("num_heads:") for line in assumed) == 1
    fields, _ = inferred(shapes_of(768, 12, 3072, bias=False))
    assert (fields["num_heads"], fields.get("qk_scale"), fields["norm_eps"]) == (12, None, 1e-5)


def test_preprocessing_matches_paddleclas() -> None:
    vit = Preprocessing(mean=(0.5,), std=(0.5,), crop_fraction=0.875, interpolation="bilinear")
    assert inferred(shapes_of(768, 12, 3072, bias=True))[0]["preprocessing"] == vit
    at_384 = inferred(shapes_of(1024, 24, 4096, bias=True, image=384))[0]
    assert at_384["preprocessing"] == dataclasses.replace(vit, crop_fraction=1.0)
    assert inferred(shapes_of(192, 12, 768, bias=True))[0]["preprocessing"] == IMAGENET  # only DeiT has this width


@pytest.mark.parametrize(("image", "crop"), [(224, 0.875), (368, 0.875), (384, 1.0)])
@pytest.mark.parametrize("distilled", [False, True])
def test_preprocessing_matches_paddlevit(image: int, crop: float, distilled: bool) -> None:
    tensors = {name: tensor.to("meta") for name, tensor in state(VIT, distilled=distilled).items()}
    tensors[f"{VIT.patch}.weight"] = torch.empty(WIDTH, 3, 16, 16, device="meta")
    tensors[VIT.position] = torch.empty(1, (image // 16) ** 2 + 1 + distilled, WIDTH, device="meta")
    builder = ConfigBuilder(found := StateDict(Path("x.pdparams"), tensors), {})
    PaddleViT().infer(found, builder)
    means = IMAGENET if distilled else Preprocessing()
    assert builder.fields["preprocessing"] == dataclasses.replace(means, crop_fraction=crop)


# ---- Invalid files ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("format", LAYOUTS)
@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("{norm}.bias", None, "1 missing: {norm}.bias"),
        ("{patch}.weight", None, "unknown format|no tensor {patch}.weight"),
        ("{position}", None, "no tensor {position}"),
        ("{norm}.scale", (3,), "1 unexpected: {norm}.scale"),
        ("{norm}.weight", (3,), r"{norm}.weight is \[3\], expected \[128\]"),
        ("{patch}.weight", (128, 192), "{patch}.weight must have 4 "),
        ("{position}", (17, 128), "{position} must have 3 "),
        ("{position}", (1, 19, 128), "19 positions; the 18 .* square grid"),
    ],
)
def test_wrong_tensors_are_rejected_in_one_line(
    part: str, change: tuple[int, ...] | None, message: str, format: str, tmp_path: Path
) -> None:
    names = dataclasses.asdict(LAYOUTS[format])
    tensors = state(LAYOUTS[format])
    tensors.pop(part.format(**names), None)
    if change is not None:
        tensors[part.format(**names)] = torch.zeros(change)
    with pytest.raises(BadCheckpoint, match=message.format(**names)) as caught:
        vitreous.load(saved(tensors, tmp_path / "a.pdparams"))
    assert "\n" not in str(caught.value)


def test_hidden_layer_with_relu_is_rejected_by_name(tmp_path: Path) -> None:
    tensors = state(VIT) | {"pre_logits.0.weight": torch.zeros(WIDTH, WIDTH), "pre_logits.0.bias": torch.zeros(WIDTH)}
    with pytest.raises(BadCheckpoint, match=r"ReLU before its classifier \(pre_logits\.0\)"):
        vitreous.load(saved(tensors, tmp_path / "a.pdparams"))


# ---- Files written by Paddle -----------------------------------------------------------------------------------------

# Written by Paddle 3.3.1 from the models in benchmarks/paddle_models.py: 8-pixel images, 4-pixel patches, width 8, one
# layer with two heads, MLP width 12, three classes. One is a tutorial's model with default settings, the other a
# distilled PaddleViT model. Compressed with zlib, in base 85. The outputs are for the sines of 0, 0.7, 1.4, ...
TUTORIAL = (
    "c-oCvOKTiQ5blknSc><M5c~)s;6o0Az#=KW1c|YT4uLF)ki@sZY9HgQtbKVjD@O;DzSxdn0tR>P{t3B{8Ty|kGyVL!X0+Ct-"
    "kqtbuKN0`*T{VRpT~EY`n(X^+16ry-ixP$cqFpBv*mPg+35}EN!*z(C+TTFN&1%}Yxk0PIG>%T$#R&Aw<6n6nj*V38)=odqRU>2qt-yY7C(#aZma"
    "ya(cOG4#v9qjD7{?7)wYkGJQP=dX^pk4bs&z9kAM8H{HU)kOU2;o=pAGHphS0|LGt(ISGgptN@jJW(X-"
    "dMxB4g<>RWq8N1A7DSwB{n`913MUX(Dit>NUnm(I`PnHaB+Z&jxsZ~3#g)Y(6~I(kq?udF%L%G$j}KOK&B96F0+{<QNvKK*^1)@^ThH@j=y_3nCF"
    "ng5=BtT@Wcul@43Tr4-3&AqfTdu{dX%C%gA4fULveYv-3?Mbu8=~%l)*V$)qpL<`G9*2F(ULNYY-<<f(J#OpMVv%q*w=efNB<M@@4?Ng=>eq2-"
    "?NNRiV6ZXBL%Y<61YR+Aj&D2zaKX`rJ(F1+<fvnxWBd?5hrDq(tv|rUac>@CV8D&VFCoSjyNf*wu`qHD#DwRxoU#2dAE<u7ZyqkpL-"
    "dLHYx9cllU!mAu_AR9#2n&@TwtEDJmj-hkCb<)8HYb_=HBHr$pgg3n$E_;o*_vM<8zcT(sS^9HU4Qn?30)`<hsk7d_`{MVI4SJpvNJ;u18=FArB<"
    "Z5^UCLh4w^}6SOArgMIJX{tU5axtbt%Y7=B|+COiYO`9+6T#}JqyfCiKy)5r}q^%An^WoWfXQwlpC)3?)rxIBG_mN(Q<$6%AH|AF_W%YAn^@B(&g"
    "cULtd6X(971E*s>E2C{9vXBfW+7VMgmmu)NF&cBH{43InCA4pv)ND6S?Af=#R{<9`>*tzUsJhJm}RV69uybm+Uod78s3=ShY0O63DLK@>e^;U0o)"
    "hxoOwN2gm#?$!sA7mW65S=;pGf{N8UCoJgXL`weREw@k{uS;7dl~xm+CrFSbIE*MN(nfy=_533)}nf^#DOa8^8r^NGF+j|XKKYljcdQ`C9qQ9Va&"
    "j3n7(x!^@ZC!rk$`9PmhSlgWP5^$`l=Zmm<R=z8j<+EwZrxn0ro-"
    "z(@I7w?3h19Wv&<$zLNNS_~AUx<Vs;3GgZ4RF~EJYYbM%qF^oeR1CL!*Jdo3-"
    "D<m!aiMrxvk0oh&*}hO0(Jx2=Q1TiCmTp20lf9D)=a4#}XsgM~y%APHqy2a*sNBtb+D9fiG%fiLWx9D6D0VX`5Rv{q2x1(MV+_9Yh86H?-"
    "wAoH^}<!$h;Nr|>jiJh=iB#8>L*O+?R%ZeG@wsoshgp;;|p}<<k7A8rH!SuLx1R+ffbXfS3#Gzf)T0DlU2*)(XF^nn68b)E$NW_*;$^rWrrjaDvV"
    "d-$N%gG4$yf>!E4PS*gNeA-McDs73y2+~=H?L*y%z6XYC;C-"
    "wOWFD$D%VyT`l)$AyFHHkqgDNDO(o~iNxj*y6+@ae47Xq^K{f!IErsTqbFJxfwb8TM_2n<>|LT@WJo<J1Q$OiX<1|i=%b&wT@j`5mTiGWUr@ged("
    "|O+85#zgXyDP?DW$od7cCk0I&%Xx2pb~tOeLCr1#!0WD-D>R-"
    "q0;;=5bkQtLn2g~KV<F6=`8Li*50ubm~D?iptk(x1bbRz2m+<?)Cs=T8qYwWH2w&%7(0Iwq0)Tiwm#Hae}kaXSS~yN1D+iP*8"
)
PADDLE_VIT = (
    "c-oa%&1)N15Pzzj#0e^GN--`asSBYP3c_~NHbG`%>O-LdQ~Gf$D6+JU)ab)mt=#$$`Yv&5*g_!NQ!k~r-h5xPy#K7-"
    "eP8=~vs&4ad0y@8?96XwelzdceEH7@YfOHg#~aamN0aFw98AV-e{|sYdV}$kI9eUgMn@-&c6So^jnQlv4mv^5If<isJMg=c@iYu(-"
    "7tO~N7tlg9NifAl*;S4#a_gFwS)L&{9U}!s%1adTPrW){<Y{@FFZN&^Vi-"
    "wydR(at~8dS+D^Q`zyHmD*+>3ru`oV3+Y^lOoebuVLd!3*U)d6{a+%Q)TF-pPck_>wp}w)Fb%cIqm+@nCS@Dki%)uj{TO4r~Ms%|~oVLTsQ-"
    "2)ym-{#J?DTIIxv9zA+&<e|*AW`z7l2wuB(2@*4W{80&9Mte3?@XHm*ze>>V(~XQThhG|HU6X>4#-k8?BYrQfs-j9OmA>V%H_sX10>-"
    "OLpaY$xi}{DY?-"
    "VsMFN%YF)1H&2xFLp9!tU;XP?DadquAA%4w!N#WCA5zWH4eJ?3+2+$Ykzgavt_tdZPXYDnM=O#ZEgT5DuYnS>EkXMd&j2vTtTyV5uV$zF)9Cgfdt"
    "RLdHm=UM(2e>%Co46Pl<i_9^P-"
    "BDL)}Fao7>NThVVovstm*QB>O1*O+=V<upU7XsE8ZkrVsmN*bzx0XbEqfg0(r&~H=m_`q<M#)vG|kuxwo7qJV0!0UTmzefjktXHrO+^{)y|C0Y)e"
    "Pln+f(^Eq6%yh#>tD{=e4;sQMm^|dnsIfQv2brxW=)GKr*5>C*b#1GCrCyvC$E)sX9()^2Nc^+_*GqvP~a__PY<zUd6&e^$EUf4}A&5U`OalPdCJ"
    "aK9MOgj14A9p7`KWGd)Cw?$(Y&JS!IBt(8!KiY>0uQ^77<-"
    "ki$9k>n`~1ouNe>?_@Njtq8gY(3|1Klai+R%idddE1c=SdA<m+#}&LwcQ&Q$<+s~ud5U(zQnDj_p(D#9x8=lN+odwRS8e{1bj9Tt|P2d|tdW@_yf"
    "o{g^juJ7g5a3h81tk4swYscC*`kpJZ)zTGXX(4Cm+be9dw5YDZY3y5hO8k<n3h*U7H!j=EkQbg76|y<<Ts);*rbSGcSIn0aC*~hw#W<`_^pzHPP="
    ">X(_%NQdoOkY(Ibv!g$U7z%9BR&yD-"
    "2@7e4tOyojsi9h2)sg9D0RK;~#m+JdC}fNo^NZH0hdZ(#JsYv`lM8sEzQP@*rF%HH(^jG7A?q`HF7x8a65pb0nipNa~USpK)3MAPz=^MKwgD!^Dz"
    "_5z<jVh>H#b=3*A9OA3<3yVY5|d=dkPFcpeZ6+2Zn=o^RKtwlAes~Yhd-KL!QumK@n9LO98G#QLyPF-mOqQ0#w845V;m{(@G0AA2T11F6rNR1f`Z"
    "{!pX7R(DaI}Ry9h6wVda+4_r!JWz?R#2p_D6$F2Ad5ULZ>zjuWEEw$t0_}AZOv_4<KDwkch+P2u?#FNgL7Jtwi@m$q(yPoBCP}|AGR|GyPTX8aBt"
    "$|IhLNMbM`flj4B2rjEp#p3*)KUPfO<zZy{y2uXetpC`|)s>mM5H`g-"
    "M~=_`GfK8N!)IhuYj*Y=hEE^xLCsE1IfZ+C~C>2z>7$c!(TeoLoz6Q$=P=AJX1Q!s2j_#X4f2(dhqnBD<Q6)`TU80)}U)u^k*yY2k{epd@hc<vsE"
    "he79%Lk}h?nQzP`uhNsi-lxDWjjR}cieKN${~*r-zxTuB+fL9K`Jo@|XP4dG_<6k1uSK_x2ko$(ZDZ}txW5XwTXFvm+-"
    "}GHdr`eR86R)=jQXb_ILHOt(YvxwB-h%XDXoV@C^dH-;eDm~H4#e9{ir@1jQvi~{#<GO2m-"
    "0`lNEfSG`b*=8b4dXmrCOq2&BfZR`5V+{00K4aq586SpFbFsTtc>A1bZCKp-{#iQd+Ntxcu!FG_Nq*{tzDz(Vi&"
)
PADDLE = {
    "paddle": (TUTORIAL, [-0.1608712077140808, 0.3044760823249817, -0.2643531560897827]),
    "paddlevit": (PADDLE_VIT, [0.4830766022205353, -0.01021239161491394, 0.08039078116416931]),
}


@pytest.mark.parametrize("format", PADDLE)
@torch.no_grad()
def test_files_written_by_paddle_give_its_outputs(format: str, tmp_path: Path) -> None:
    packed, logits = PADDLE[format]
    path = tmp_path / "a.pdparams"
    path.write_bytes(zlib.decompress(base64.b85decode(packed)))
    model = loaded(path, overrides={"num_heads": 2})
    assert provenance_of(model)["format"] == format
    images = torch.arange(192.0).mul(0.7).sin().view(1, 3, 8, 8)
    assert (model(images) - torch.tensor([logits])).abs().max() <= TOLERANCE


PLAIN = ViTConfig(
    image_size=(IMAGE, IMAGE), patch_size=(PATCH, PATCH), width=WIDTH, depth=DEPTH, num_heads=HEADS, mlp_width=MLP,
    mlp=Gelu("erf"), num_classes=CLASSES,
)  # fmt: skip
SHOWN = {  # assumed, because the file does not specify it
    "paddle": {"position": Learned1d(True, "timm"), "preprocessing": Preprocessing(interpolation="bilinear")},
    "paddlevit": {"position": Learned1d(True, "huggingface"), "preprocessing": Preprocessing()},
}
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "PaddleClas": ("paddle", {}),
    "PaddleClas, a tutorial's defaults": ("paddle", {"qkv_bias": False, "norm_eps": 1e-5}),
    "PaddleClas, distilled": ("paddle", {"distillation_token": True, "preprocessing": IMAGENET}),
    "PaddleClas, no classifier": ("paddle", {"num_classes": 0}),
    "PaddleViT": ("paddlevit", {}),
    "PaddleViT, no bias": ("paddlevit", {"qkv_bias": False}),
    "PaddleViT, distilled": ("paddlevit", {"distillation_token": True, "preprocessing": IMAGENET}),
    "PaddleViT, independent head width": ("paddlevit", {"head_dim": 40}),
}


def build_case(case: str) -> tuple[str, ViT]:
    format, options = WRITTEN[case]
    model = noisy(build_vit(dataclasses.replace(PLAIN, **SHOWN[format] | options)))
    assert isinstance(model, ViT)
    return format, model


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITTEN)
def test_reference_gives_same_outputs_from_written_file(case: str, tmp_path: Path) -> None:
    format, model = build_case(case)
    vitreous.save(model, tmp_path / "a.pdparams", format=format)
    arrays = pickle.loads((tmp_path / "a.pdparams").read_bytes())  # like paddle.load
    assert list(arrays.pop(NAMES)) == list(arrays)
    config = model.config
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    inner = config.num_heads * config.head_width
    options = {"bias": config.qkv_bias, "distilled": config.distillation_token, "classes": config.num_classes}
    expected = state(LAYOUTS[format], inner=inner, **options)
    assert {name: x.shape for name, x in tensors.items()} == {name: x.shape for name, x in expected.items()}
    check_close(model, lambda images: reference(tensors, LAYOUTS[format], images, config.norm_eps), (IMAGE, IMAGE))


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITTEN)
def test_round_trip_is_bit_identical(case: str, tmp_path: Path) -> None:
    format, model = build_case(case)
    vitreous.save(model, tmp_path / "a.pdparams", format=format)
    overrides = {"num_heads": HEADS} if model.config.head_dim else None
    again = loaded(tmp_path / "a.pdparams", overrides=overrides)
    check_identical(again, model)
    assert provenance_of(again)["format"] == format


@pytest.mark.parametrize("format", SHOWN)
@pytest.mark.parametrize("target", ["folder", "a.safetensors"])
def test_other_file_kinds_round_trip(format: str, target: str, tmp_path: Path) -> None:
    _, model = build_case("PaddleClas" if format == "paddle" else "PaddleViT")
    for _ in range(2):  # the second save replaces the first
        vitreous.save(model, tmp_path / target, format=format)
    check_identical(loaded(tmp_path / target), model)


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "registers": {"registers": 2},
    "layer_scale": {"layer_scale": 0.1},
    "qk_norm": {"qk_norm": True},
    "SwiGLU": {"mlp": SwiGlu()},
    "head of two layers": {"head": TanhHead(32)},
    "pooling, got GlobalAverage": {"pool": GlobalAverage()},
    "positions, got SinCos2d": {"position": SinCos2d()},
    "a position for the class token": {"position": Learned1d(False)},
    "patch_norm": {"patch_norm": True, "patch_method": "linear"},
    "stem": {"stem": ResNetStem(()), "patch_size": (2, 2)},
    "square images, got 32 x 64": {"image_size": (32, 64)},
    "pad": {"image_size": (30, 30), "pad": True},
}


@pytest.mark.parametrize("format", SHOWN)
@pytest.mark.parametrize("part", UNSUPPORTED)
def test_unsupported_parts_are_rejected_by_name(part: str, format: str, tmp_path: Path) -> None:
    model = build_vit(dataclasses.replace(PLAIN, **UNSUPPORTED[part]))
    with pytest.raises(UnsupportedByFormat, match=f"does not support this model: .*{part}"):
        vitreous.save(model, tmp_path / "a.pdparams", format=format, lossy=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        ("paddle", {"head_dim": 40}, "head_dim.*got 40"),
        ("paddlevit", {"qk_scale": 0.3}, r"qk_scale.*got 0\.3"),
        ("paddlevit", {"num_classes": 0}, "requires a classifier"),
    ],
)
def test_parts_unsupported_by_one_format_are_rejected(format: str, change: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(build_vit(dataclasses.replace(PLAIN, **change)), tmp_path / "a.pdparams", format=format)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format", "change", "message"),
    [
        ("paddle", {"mlp": Gelu("tanh")}, "GELU"),
        ("paddle", {"norm_eps": 1e-5}, "eps .* 1e-06 in PaddleClas"),
        ("paddle", {"qkv_bias": False}, "eps .* 1e-05 in PaddleClas"),
        ("paddle", {"qk_scale": 0.3}, r"attention scale is 0\.3"),
        ("paddlevit", {"mlp": Gelu("tanh")}, "GELU"),
        ("paddlevit", {"norm_eps": 1e-5}, "eps is 1e-05"),
    ],
)
def test_other_numerics_require_lossy(format: str, change: Any, message: str, tmp_path: Path) -> None:
    model, path = build_vit(dataclasses.replace(PLAIN, **SHOWN[format] | change)), tmp_path / "a.pdparams"
    with pytest.raises(UnsupportedByFormat, match=message):
        vitreous.save(model, path, format=format)
    vitreous.save(model, path, format=format, lossy=True)
    check_identical(loaded(path, overrides={"norm_eps": model.config.norm_eps} | change), model)


def test_scale_of_paddleclas_vit_small_is_not_lossy() -> None:
    small = dataclasses.replace(PLAIN, width=768, depth=8, num_heads=8, mlp_width=2304, qkv_bias=False, norm_eps=1e-5)
    assert Paddle().differences(dataclasses.replace(small, qk_scale=768**-0.5)) == []
    assert "attention scale" in Paddle().differences(small)[0]
