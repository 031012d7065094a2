/* Lesson 5, in numbers: a filter of 3 x 3 slides over an image of 6 x 6.
 *
 * docs/tutorial/5-cifar-single.md shows what this program prints. */
#include <tandem.h>

static void print_numbers(const char *what, const td_tensor *t)
{
    td_shape shape = td_shape_of(t);
    int height = (int)shape.dim[2], width = (int)shape.dim[3];
    double v[36];
    td_read(t, v, TD_F64);
    printf("%s: %d x %d\n", what, height, width);
    for (int i = 0; i < height * width; i++) {
        printf("%4.0f%s", v[i], (i + 1) % width == 0 ? "\n" : "");
    }
}

int main(int argc, char **argv)
{
    static const td_option none[] = { { 0 } };
    td_read_options(argc, argv, "", none); /* --help, and no other option */
    /* A bright square on a dark ground, and a filter that finds where dark turns bright from left
     * to right: the right column minus the left one. */
    float pixels[36] = { 0 };
    for (int i = 0; i < 36; i++) {
        pixels[i] = i / 6 >= 1 && i / 6 <= 4 && i % 6 >= 2 && i % 6 <= 4 ? 1 : 0;
    }
    td_tensor *image = td_from(pixels, TD_SHAPE(1, 1, 6, 6), TD_F32, TD_CPU);
    td_tensor *filter =
        td_from((float[]){ -1, 0, 1, -1, 0, 1, -1, 0, 1 }, TD_SHAPE(1, 1, 3, 3), TD_F32, TD_CPU);
    if (image == NULL || filter == NULL) {
        td_die();
    }
    print_numbers("image", image);
    print_numbers("filter", filter);
    TD_STEP {
        print_numbers("result", td_conv2d(image, filter, NULL));
        print_numbers("with a border of 0", td_conv2d(image, filter, NULL, .padding = 1));
        print_numbers("every second place",
                      td_conv2d(image, filter, NULL, .padding = 1, .stride = 2));
    }
    td_free(filter);
    td_free(image);
    return td_finish();
}
