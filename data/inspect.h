/* More about datasets and loaders: raw images and labels, files of a folder, waiting times, and
 * where images are kept. For tools, tests and captured steps; tandem.h does not include this
 * header. */
#pragma once

#include "data/data.h"

TD_BEGIN_C

/* ---- images in memory (CIFAR, synthetic) ---- */

/* The untransformed images of such a dataset, u8 [length,3,32,32] row-major, and its labels, u8
 * [length]. The dataset owns both. NULL for other datasets, and for parts made by td_split. */
const uint8_t *td_dataset_pixels(const td_dataset *dataset);
const uint8_t *td_dataset_labels(const td_dataset *dataset);

/* ---- folders of images ---- */

/* The path of a sample's file, relative to the folder; the dataset owns it. */
const char *td_image_folder_path(const td_dataset *dataset, int64_t sample);

/* The number of images that could not be read so far (skip_bad); and a sample's message, which
 * names its path, if its image is one of them; otherwise NULL. The dataset owns the message. */
int64_t td_image_folder_bad(const td_dataset *dataset);
const char *td_image_folder_bad_at(const td_dataset *dataset, int64_t sample);

/* ---- any dataset ---- */

/* How many class numbers or tokens a sample's y has: 1 for a class, T for i64 [n,T]. Numbers to
 * predict count as one. */
int64_t td_dataset_targets(const td_dataset *dataset);

/* ---- loaders ---- */

const td_dataset *td_loader_dataset(const td_loader *loader);

/* The number of samples in the batches of an epoch. */
int64_t td_loader_samples(const td_loader *loader);

/* The batch of that epoch, counted from 0, that the next td_loader_next gives. */
int64_t td_loader_position(const td_loader *loader);

/* Seconds that td_loader_next has waited for workers since the loader was opened. */
double td_loader_wait_seconds(const td_loader *loader);

/* Whether the loader keeps the dataset's images on its GPU, as bytes, and crops batches there. The
 * loader does so if the images are in memory (CIFAR, synthetic), fit on the GPU, and the option
 * `streamed` is not set. Otherwise workers assemble batches in CPU memory, and the loader copies
 * them to the GPU. Both ways give the same batches, bit for bit. */
bool td_loader_is_resident(const td_loader *loader);

/* Splits td_loader_next in two, so that the GPU's part can belong to a captured step
 * (tensor/graph/captured.h). After td_loader_defer, td_loader_next only draws the crops and flips
 * of a batch, and td_loader_make fills the batch's tensors, which have the contents of an earlier
 * batch until then. A replay of the step fills them with the batch that was drawn last.
 * td_loader_defer returns false, and changes nothing, if the loader is not resident. td_loader_make
 * does nothing unless td_loader_defer returned true. */
bool td_loader_defer(td_loader *loader);
void td_loader_make(td_loader *loader);

TD_END_C
