/* Which modules of a model are its blocks, stages and stem: the models of td_model are held against
 * torchvision's names, and in a model of a user's own marks count, not names. */
#include "nn/module.h"
#include "tandem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* A stage is a module of this many names ("layer1": 1; "features.denseblock1": 2) that begins so, a
 * block one below it. */
static const struct {
    const char *begin;
    int depth;
} places[] = {
    { "layer", 1 },               /* ResNets, ResNeXts, BoTNet */
    { "features.denseblock", 2 }, /* DenseNets */
    { "features.transition", 2 },
    { "features.", 2 },          /* EfficientNet */
    { "trunk_output.block", 2 }, /* RegNets */
};

static td_module_part part_by_name(const td_module *m, const char *path)
{
    if (strcmp(path, "conv1") == 0 || strcmp(path, "stem") == 0) {
        return TD_PART_STEM;
    }
    int names = *path != '\0';
    for (const char *c = path; *c != '\0'; c++) {
        names += *c == '.';
    }
    for (size_t i = 0; i < sizeof places / sizeof *places && m->child_count > 0; i++) {
        if (strncmp(path, places[i].begin, strlen(places[i].begin)) == 0) {
            int below = names - places[i].depth;
            return below == 0 ? TD_PART_STAGE : below == 1 ? TD_PART_BLOCK : TD_PART_NONE;
        }
    }
    return TD_PART_NONE;
}

typedef struct counted {
    int blocks, stages;
} counted;

static void compare(const td_module *m, const char *path, counted *c)
{
    if (td_module_part_of(m) != part_by_name(m, path)) {
        fail_msg("'%s': part %d, its name says %d", path, (int)td_module_part_of(m),
                 (int)part_by_name(m, path));
    }
    c->blocks += td_module_part_of(m) == TD_PART_BLOCK;
    c->stages += td_module_part_of(m) == TD_PART_STAGE;
}

static void check_model(td_module *net, const char *name)
{
    counted c = { 0 };
    assert_non_null(net);
    print_message("# %s\n", name);
    for (const td_module *m = net; m != NULL; m = td_module_next(net, m)) {
        compare(m, td_module_path(net, m), &c);
    }
    assert_true(c.blocks > 2 && c.stages > 0);
    assert_int_equal(td_model_recompute(net, TD_PART_BLOCK), c.blocks);
    assert_int_equal(td_model_recompute(net, TD_PART_STAGE), c.stages);
    assert_int_equal(td_model_recompute(net, TD_PART_NONE), 0);
    td_module_free(net);
}

static void test_every_model(void **state)
{
    (void)state;
    bool before = td_defer_init(true); /* without memory for values */
    int count = 0;
    for (const char *name; (name = td_model_name(count)) != NULL; count++) {
        if (strncmp(name, "gpt", 3) == 0) {
            break; /* the last ones take tokens: test_nn_gpt */
        }
        check_model(td_model(name), name);
    }
    td_defer_init(before);
    assert_int_equal(count, 18);
}

static td_module *two_layers(void)
{
    return td_nn_sequential(td_nn_linear(3, 3), td_nn_relu(), td_nn_linear(3, 3));
}

/* The names are a ResNet's; its author has marked nothing, then other modules. */
static void test_marks_count(void **state)
{
    (void)state;
    static const td_module_type type = { .name = "Own" };
    td_module *net = td_module_new(&type, 0);
    td_module *layer = td_module_add(net, "layer1", td_nn_sequential(two_layers(), two_layers()));
    td_module *other = td_module_add(net, "other", two_layers());
    net = td_module_finish(net);
    assert_non_null(net);
    assert_int_equal(td_model_recompute(net, TD_PART_BLOCK), 0);
    assert_ptr_equal(td_module_mark(other, TD_PART_BLOCK), other);
    assert_null(td_module_mark(NULL, TD_PART_BLOCK));
    td_module_mark(layer->children[1], TD_PART_BLOCK);
    assert_int_equal(td_model_recompute(net, TD_PART_BLOCK), 2);
    td_module *copy = td_module_clone(net);
    assert_non_null(copy);
    assert_int_equal(td_module_part_of(td_module_find(copy, "layer1.1")), TD_PART_BLOCK);
    assert_int_equal(td_module_part_of(td_module_find(copy, "layer1.0")), TD_PART_NONE);
    td_module_free(copy);
    td_module_free(net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_model),
        cmocka_unit_test(test_marks_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
