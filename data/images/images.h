/* Folders of image files, with a sub-folder for each class: opened, split, and transformed as
 * torchvision does. tandem.h includes this header. */
#pragma once

#include "data/data.h"

TD_BEGIN_C

/* How an image file of any size becomes [3,size,size], with PIL's antialiased bilinear filter as in
 * torchvision, byte for byte. For training (resize 0): RandomResizedCrop, flip and ColorJitter. The
 * random numbers depend only on seed, epoch and sample. For evaluation (resize > 0): the shorter
 * side becomes `resize`, and the centre is cropped. Then (value/255 - mean) / std. */
typedef struct td_image_folder_transform {
    int size;                  /* height and width of the result; 0: 224 */
    int resize;                /* 0: training; otherwise at least size */
    double scale[2], ratio[2]; /* of RandomResizedCrop; 0: { 0.08, 1 } and { 3/4, 4/3 } */
    bool flip;                 /* horizontally, with probability 1/2 */
    double brightness, contrast, saturation, hue; /* of ColorJitter; 0: unchanged */
    float mean[3], std[3];                        /* of each channel; all zero: value/255 */
    uint64_t seed;
} td_image_folder_transform;

typedef struct td_image_folder_options {
    int begin_; /* for the library: lets the macro take an empty list */
    const char *folder;
    td_image_folder_transform transform;
    double val_fraction; /* the share of each class's images for validation, below 1; 0: no split */
    bool val;            /* with val_fraction: the images for validation, not those for training */
    uint64_t split_seed; /* another seed: another split */
    const char *const *class_names; /* the numbers of the classes are their places in this list:
                                       give the training set's class_names and classes when you open
                                       the test set */
    int classes;   /* names in the list; 0: the sub-folders, sorted, are the list */
    bool skip_bad; /* an image that cannot be read is replaced by the next one that can, counted and
                      listed; otherwise it is an error that names the file */
    int64_t most_pixels; /* larger images are refused before they are decoded, and files larger
                            than 4 most_pixels + 1 MiB before they are read; 0: 100 million */
} td_image_folder_options;

/* Opens FOLDER/CLASS/.../image, td_image_folder_open("FOLDER", .transform = { ... }): each
 * sub-folder is a class, and its name is the class's name: plain text in UTF-8. The classes are
 * numbered in the order of their names, and the samples sorted as torchvision's ImageFolder sorts
 * them. With .class_names the label of an image is the place of its sub-folder's name in that list;
 * a class may have no sub-folder (a notice says so), and a sub-folder of another name is an error
 * that shows both lists. Files are chosen by suffix (jpg, jpeg, png, bmp, gif, tga, psd, pgm, ppm,
 * pnm, hdr, in upper or lower case) and decoded by content; of a GIF the first frame counts.
 * Symbolic links are followed. A file with the suffix of another kind of image (tif, tiff, webp,
 * heic, avif, pbm) is an error, and files with other suffixes are skipped. So are hidden files and
 * folders, which a notice counts: names that begin with a dot, __MACOSX, @eaDir, $RECYCLE.BIN,
 * System Volume Information, lost+found, Thumbs.db, desktop.ini.
 *
 * val_fraction splits a folder without moving files: open it twice, once with val set. In a class
 * of n images about val_fraction * n are for validation, at least one and at most n - 1. A hash of
 * each file's path decides, so both parts are the same in every run and on every machine.
 *
 * NULL with td_last_error(): an option is out of range, no such folder, no class, a class without
 * images, a sub-folder whose name is not plain text or not in .class_names, an image of another
 * kind, a link that leads in a circle, or a class of one image that is to be split; the message
 * names the file or folder. td_loader_next fails on an image for the same reasons as td_image_read.
 */
td_dataset *td_image_folder_open_at(td_image_folder_options options, td_site at);
#define td_image_folder_open(...)                                                                  \
    td_image_folder_open_at((td_image_folder_options){ TD_OPT1(folder, __VA_ARGS__) }, TD_HERE)

/* Reads one image file into x, f32 [1,3,size,size] in the layout TD_IMAGE. TD_E_ARG: the transform
 * is out of range. TD_E_NOTFOUND, TD_E_IO: the file cannot be opened or read. TD_E_FORMAT: neither
 * JPEG nor PNG, damaged, cut off, or too large. TD_E_UNSUPPORTED: tandem was built without the
 * library that decodes this kind. */
td_status td_image_read(const char *path, const td_image_folder_transform *transform, td_tensor *x);

TD_END_C
