/* What is in an image, by a model that PyTorch has trained: torchvision's resnet18. */
#include <tandem.h>
#include <tensor/extend.h> /* td_new_layout */

static const char usage[] =
    "usage: predict_pytorch MODEL.safetensors IMAGE\n\n"
    "Make the model's file in Python (pip install torch torchvision safetensors):\n\n"
    "    import torchvision, safetensors.torch\n"
    "    net = torchvision.models.resnet18(weights='DEFAULT')\n"
    "    safetensors.torch.save_file(net.state_dict(), 'resnet18.safetensors')\n";

int main(int argc, char **argv)
{
    if (argc != 3) {
        fputs(usage, stderr);
        return 2;
    }
    td_module *net = td_model("resnet18", .blank = true); /* 1000 classes; the weights come now */
    if (net == NULL || td_load(argv[1], net) != TD_OK) {
        td_die();
    }
    td_eval(net);

    /* The transform of torchvision's weights: Resize(256), CenterCrop(224), Normalize. */
    td_image_folder_transform transform = { .size = 224,
                                            .resize = 256,
                                            .mean = { 0.485f, 0.456f, 0.406f },
                                            .std = { 0.229f, 0.224f, 0.225f } };
    td_tensor *x = td_new_layout(TD_SHAPE(1, 3, 224, 224), TD_F32, TD_IMAGE, TD_CPU);
    if (x == NULL || td_image_read(argv[2], &transform, x) != TD_OK) {
        td_die();
    }
    float p[1000];
    td_no_grad_begin();
    TD_STEP {
        td_read(td_softmax(td_forward(net, x), 1), p, TD_F32);
    }
    td_no_grad_end();

    for (int k = 0; k < 5; k++) {
        int best = 0;
        for (int i = 1; i < 1000; i++) {
            best = p[i] > p[best] ? i : best;
        }
        printf("%6.2f %%  class %d\n", 100 * p[best], best);
        p[best] = -1;
    }
    td_free(x);
    td_module_free(net);
    return 0;
}
