"""Answering from a gallery: an index that stores variances, calibrated probabilities, one doubt, abstention."""

from doubtless.retrieval.answer import Answer as Answer
from doubtless.retrieval.answer import Answers as Answers
from doubtless.retrieval.answering import Answerer as Answerer
from doubtless.retrieval.calibrator import Calibrator as Calibrator
from doubtless.retrieval.covering import CoveringSets as CoveringSets
from doubtless.retrieval.doubt import Doubt as Doubt
from doubtless.retrieval.doubt_parts import DoubtParts as DoubtParts
from doubtless.retrieval.hits import Hits as Hits
from doubtless.retrieval.index import Index as Index
from doubtless.retrieval.index_calibration import calibrate_index as calibrate_index
from doubtless.retrieval.pair_calibrator import PairCalibrator as PairCalibrator
from doubtless.retrieval.risk import RiskControl as RiskControl
