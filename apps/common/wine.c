#include "apps/common/wine.h"

enum { HIDDEN = 64, CLASSES = 3 };

static td_tensor *wine_forward(td_module *net, td_tensor *x, td_site at)
{
    (void)at;
    return td_forward(net->children[1], td_relu(td_forward(net->children[0], x)));
}

td_module *wine_net(void)
{
    static const td_module_type type = { .name = "WineNet", .forward = wine_forward };
    td_module *net = td_module_new(&type, 0);
    td_module_add(net, "fc1", td_nn_linear(WINE_FEATURES, HIDDEN));
    td_module_add(net, "fc2", td_nn_linear(HIDDEN, CLASSES));
    return td_module_finish(net);
}

td_status wine_print_first_sample(const td_dataset *train)
{
    td_tensor *x = td_new(TD_SHAPE(1, WINE_FEATURES), TD_F32, TD_CPU);
    td_tensor *y = td_new(TD_SHAPE(1), TD_I64, TD_CPU);
    td_status status = TD_E_NOMEM;
    if (x != NULL && y != NULL) {
        status = train->vtable->fetch(train, (int64_t[]){ 0 }, 1, 0, x, y);
    }
    if (status == TD_OK) {
        printf("Sample from dataset:\nData: ");
        td_print(x, stdout);
        printf("Target: %.0f\n\n", td_item(y));
    }
    td_free(x);
    td_free(y);
    return status;
}
