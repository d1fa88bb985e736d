"""Where people already are: scikit-learn, torchmetrics, pytorch-metric-learning, Lightning. A file each, imported
only by whoever uses that library:

    from doubtless.pipelines.scikit import GalleryClassifier
    from doubtless.pipelines.streaming import RetrievalMeasures, DoubtMeasures
    from doubtless.pipelines.metric_learning import LossForTrainers, ChosenPairsMiner
    from doubtless.pipelines.watching import MeasureRetrieval
"""
