"""Encoders without a head, opened from Hugging Face folders: vectors of texts and of images. They are never trained."""

from regard.models.bert import TextEmbedder
from regard.models.vit import ImageEmbedder
from regard.recipe import BaseImageData, EncoderModel, TextData, VitModel
from regard.tasks.base import Run
from regard.tasks.shared.embedding import embed_texts
from regard.tasks.shared.images import embed_images, resize_images
from regard.tasks.task import HUMAN_CHECK, TEXT_LIMITS, Task, TaskCard


class EncodeRun(Run):
    """A text encoder."""

    embed = embed_texts


class EncodeImagesRun(Run):
    """An image encoder."""

    embed = embed_images
    resize = resize_images


ENCODE = Task(
    name="encode",
    does="embeds texts",
    recipe=None,
    run=EncodeRun,
    models={"transformer": TextEmbedder},
    verbs=("embed",),
    pretrained=(EncoderModel, TextData),
    card=TaskCard(
        uses="Vectors of texts and of words in their sentences, to compare and to search by. Research and teaching.",
        misuses=f"{HUMAN_CHECK} what is found; judging people by what is near to what.",
        limits=TEXT_LIMITS,
        commands=('embed {} "…"', 'embed {} "…" --pool words'),
    ),
)
ENCODE_IMAGES = Task(
    name="encode",
    does="embeds images",
    recipe=None,
    run=EncodeImagesRun,
    models={"vit": ImageEmbedder},
    verbs=("embed", "resize"),
    reads=("image",),
    image_positions=True,
    pretrained=(VitModel, BaseImageData),
    model_sizes=lambda recipe, vocabulary: (recipe.data.height_width,),
    card=TaskCard(
        uses="Vectors of images, to compare and to search by. Research and teaching.",
        misuses="Recognising or judging people by what is near to what.",
        limits="It repeats the biases of its training images; images unlike them come out badly.",
        commands=("embed {} a.jpg",),
    ),
)
