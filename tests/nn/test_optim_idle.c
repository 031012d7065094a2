/* An optimizer's step without any gradient, which is mostly a mistake, is told. */
#include "tandem.h"
#include "nn/module.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* One step of an optimizer of `stepped`, after backward of a loss of `trained`, if that is not
 * NULL. Returns what is written to stderr. */
static const char *said_by_step(td_module *stepped, td_module *trained)
{
    static char text[1024];
    td_optim *optim = td_sgd(td_parameters(stepped), .lr = 0.1);
    td_tensor *x = td_full(TD_SHAPE(2, 3), 1.0, TD_F32, TD_CPU);
    FILE *file = tmpfile();
    assert_non_null(file);
    int kept = dup(STDERR_FILENO);
    assert_true(kept >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    td_zero_grad(optim);
    if (trained != NULL) {
        TD_STEP {
            td_backward(td_sum(td_forward(trained, x)));
        }
    }
    td_optim_step(optim);
    dup2(kept, STDERR_FILENO);
    close(kept);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    td_free(x);
    td_optim_free(optim);
    return text;
}

static void test_step_without_gradients(void **state)
{
    (void)state;
    td_module *net = td_nn_linear(3, 4), *other = td_nn_linear(3, 4), *frozen = td_nn_linear(3, 4);
    td_parameters(other);
    td_params *params = td_parameters(frozen);
    for (int i = 0; i < td_params_count(params); i++) {
        td_requires_grad(td_params_get(params, i)->tensor, false);
    }
    assert_string_equal(said_by_step(net, net), "");
    assert_string_equal(said_by_step(frozen, NULL), "");
    assert_string_equal(said_by_step(net, other),
                        "tandem: td_optim_step: no parameter of this optimizer has a gradient, so "
                        "nothing changes; call td_backward on this model's loss first\n");
    assert_string_equal(said_by_step(net, NULL), ""); /* once */
    td_module_free(net);
    td_module_free(other);
    td_module_free(frozen);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_step_without_gradients),
    };
    return cmocka_run_group_tests_name("nn: steps without gradients", tests, NULL, NULL);
}
