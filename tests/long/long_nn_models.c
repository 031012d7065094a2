/* Every model against torchvision: initial weights, and logits and gradients for pictures of 224
 * and of an odd size. */
#include "tests/help/golden.h"
#include "tests/nn/models_check.h"
#include "tests/help/temp_folder.h"
#include "nn/module.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 64 };

static void test_initial(void **state)
{
    cJSON *golden = golden_open_path("tests/golden/models.json");
    int found = 0;
    for (const cJSON *row = golden_get(golden, "models")->child; row != NULL; row = row->next) {
        if (strcmp(golden_get(row, "name")->valuestring, *state) == 0) {
            models_check_initial(row);
            found++;
        }
    }
    assert_int_equal(found, 1);
    cJSON_Delete(golden);
}

static void test_torch(void **state)
{
    const char *name = *state; /* a setup would take its place */
    temp_folder_setup(state);
    if (!models_have_torch()) {
        temp_folder_teardown(state);
        skip();
    }
    models_check_torch(name, 224, 2);
    models_check_torch(name, 193, 2);
    temp_folder_teardown(state);
}

static bool is_wanted(const char *name)
{
    const char *only = getenv("TANDEM_MODELS");
    bool exact = false;
    for (int i = 0; only != NULL && td_model_name(i) != NULL; i++) {
        exact = exact || strcmp(td_model_name(i), only) == 0;
    }
    return only == NULL || (exact ? strcmp(name, only) == 0 : strstr(name, only) != NULL);
}

/* TANDEM_MODELS: only the one of this name, or those whose names contain it. */
int main(void)
{
    static struct CMUnitTest tests[2 * MOST];
    static char titles[2 * MOST][64];
    int count = 0;
    for (int i = 0; td_model_name(i) != NULL && i < MOST; i++) {
        const char *name = td_model_name(i);
        if (!is_wanted(name) || strncmp(name, "gpt", 3) == 0) {
            continue;
        }
        for (int kind = 0; kind < 2; kind++) {
            snprintf(titles[count], sizeof titles[count], "%s_%s", name,
                     kind == 0 ? "initial" : "torch");
            tests[count] = (struct CMUnitTest){ .name = titles[count],
                                                .test_func = kind == 0 ? test_initial : test_torch,
                                                .initial_state = (void *)(uintptr_t)name };
            count++;
        }
    }
    return _cmocka_run_group_tests("models against torchvision", tests, (size_t)count, NULL, NULL);
}
