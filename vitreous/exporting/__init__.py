"""Export: a model with its preprocessing as one file for another runtime.

`export_model` implements `vitreous.export`. `graph` traces the model from decoded images to the `outputs`. Inside,
`preprocess` computes the same pixels as the predictor, with the matrices of `resample`. `runtimes` writes and runs the
files, `metadata` describes them, and `validate` compares them with the predictor on real images. `quantise` makes int8
models, also for `vitreous.quantise` (`quantise_checkpoint`), and `compare_precisions` chooses the precision. web/
writes the web page with a model that runs in the browser.
"""

from typing import TYPE_CHECKING

from vitreous.common.lazy_names import lazy_names
from vitreous.exporting.options import OptionalOutput, PrecisionChoice, Target, WebPrecision

if TYPE_CHECKING:
    from vitreous.exporting.compare_precisions import Comparison as Comparison
    from vitreous.exporting.export_model import Export as Export
    from vitreous.exporting.export_model import export as export
    from vitreous.exporting.validate import Check as Check
    from vitreous.exporting.validate import ExportFailed as ExportFailed
    from vitreous.exporting.web.export_page import WebExport as WebExport
    from vitreous.exporting.web.export_page import export_web as export_web

_HOMES = {
    "Check": "vitreous.exporting.validate",
    "Comparison": "vitreous.exporting.compare_precisions",
    "Export": "vitreous.exporting.export_model",
    "export": "vitreous.exporting.export_model",
    "export_web": "vitreous.exporting.web.export_page",
    "ExportFailed": "vitreous.exporting.validate",
    "WebExport": "vitreous.exporting.web.export_page",
}
__all__ = ["OptionalOutput", "PrecisionChoice", "Target", "WebPrecision", *_HOMES]
if not TYPE_CHECKING:  # mypy would accept any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
