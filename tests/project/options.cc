/* Every macro that takes options, called as the headers say: test_cplusplus.sh compiles it. Nothing
 * runs. */
#include "tandem.h"

#include "autograd/windows.h"
#include "data/text/tokenizer.h"
#include "dist/ddp/codec.h"
#include "dist/leaves/leaves.h"
#include "dist/pipeline/pipeline.h"
#include "nn/extra/compact.h"
#include "nn/extra/ema.h"
#include "nn/extra/layers.h"
#include "nn/extra/lora.h"
#include "nn/extra/muon.h"
#include "nn/extra/optimizers.h"
#include "nn/extra/scaler.h"
#include "nn/io/fingerprint.h"
#include "nn/onnx/onnx.h"

void all_optimizers(td_module *net, td_params *p)
{
    td_optim *o = td_sgd(p, .lr = 0.1, .momentum = 0.9, .nesterov = true);
    td_optim_set(o, 0, .lr_scale = 2, .weight_decay = 0);
    td_adam(p), td_adam(p, .lr = 1e-3), td_adamw(p, .lr = 1e-3, .weight_decay = 0.1);
    td_rmsprop(p, .lr = 1e-3), td_adagrad(p), td_lion(p), td_muon(p, .lr = 0.1);
    td_adam_compact(p, .bits = 8), td_ema_new(net, .decay = 0.9), td_scaler_new(.scale = 2);
    td_clip_grad_norm(p, 1.0), td_clip_grad_norm(p, 1.0, .norm_type = 2), td_lora(net, .rank = 4);
}

void all_modules(void)
{
    td_nn_linear(1, 2), td_nn_linear(1, 2, .no_bias = true);
    td_nn_conv1d(1, 2, .kernel = 3), td_nn_conv2d(1, 2, .kernel = 3, .padding = 1);
    td_nn_conv3d(1, 2, .kernel = 3), td_nn_conv_transpose1d(1, 2, .kernel = 3);
    td_nn_conv_transpose2d(1, 2, .kernel = 3), td_nn_batch_norm2d(3, .eps = 1e-5);
    td_nn_group_norm(2, 4), td_nn_instance_norm(3), td_nn_rms_norm(3), td_nn_layer_norm(3);
    td_nn_max_pool1d(.kernel = 2), td_nn_avg_pool1d(.kernel = 2), td_nn_upsample(.scale = 2);
    td_nn_max_pool2d(2, .stride = 2), td_nn_avg_pool2d(2), td_nn_embedding(2, 3);
    td_nn_sequential(td_nn_linear(1, 2), td_nn_relu());
    td_model("resnet18", .classes = 10), td_gpt(.layers = 2, .heads = 2, .width = 8);
}

void all_operations(td_tensor *x, td_tensor *y, td_tensor *z)
{
    td_pad(x, .value = 1), td_cross_entropy(x, y), td_cross_entropy(x, y, .label_smoothing = 0.1);
    td_linear_cross_entropy(x, y, z, .chunk = 2), td_nll_loss(x, y), td_mse_loss(x, y);
    td_l1_loss(x, y), td_huber_loss(x, y, .delta = 1), td_smooth_l1_loss(x, y), td_hinge_loss(x, y);
    td_bce_with_logits(x, y, .weight = z), td_kl_div(x, y), td_hinge_embedding_loss(x, y);
    td_cosine_embedding_loss(x, y, z, .margin = 1), td_attention(x, .heads = 2), td_rope(x);
    td_conv1d(x, y, NULL, .stride = 2), td_conv3d(x, y, z), td_conv_transpose1d(x, y, z);
    td_conv_transpose2d(x, y, z, .stride = 2), td_conv2d(x, y, z, .stride = 2, .padding = 1);
    td_max_pool1d(x, 2), td_avg_pool1d(x, 2, .stride = 1), td_interpolate(x, .scale = 2);
    td_max_pool2d(x, 2), td_avg_pool2d(x, 2, .stride = 1), td_layer_norm(x, y, z, 1e-5);
    td_batch_norm(x, y, z, NULL, NULL, .training = true), td_embedding(x, y), td_backward(x);
}

void all_data(td_module *net, td_dataset *d, td_loader *loader)
{
    td_loader_open(d, .batch_size = 32, .shuffle = true), td_image_folder_open("x", .val = true);
    td_csv_dataset("x.csv", .label = "y"), td_cifar_or_synthetic(NULL, &d, &d, .limit = 2);
    td_tokens_open(.path = "x"), td_tokenizer_open("x", "y"), td_evaluate(net, loader);
    td_checkpoint_save("x", net), td_checkpoint_load("x", net), td_load_model("x", .arch = "y");
    td_fingerprints prints;
    td_fingerprint(&prints, net, .optim = NULL);
    td_onnx_export(net, TD_SHAPE(1, 2), "x", .dynamic_batch = true);
    td_gpt_generate(net, .temperature = 1);
}

void all_distributed(td_module *net, const td_tp_rule *rules, int (*fn)(int, void *))
{
    td_dist_init(.backend = "shm"), td_spawn(fn, NULL, 2), td_distributed_sampler(.shuffle = true);
    td_ddp(net), td_ddp(net, .strategy = td_zero(TD_SHARD_PARAMETERS, .wire = "bf16"));
    td_ddp(net, .codec = td_powersgd(.rank = 4)), td_tensor_parallel(net, rules, 1, .slices = 2);
    td_ddp(net, .strategy = td_leaves(4)), td_pipeline(net, .micro = 2);
    td_pipeline_step(net, NULL, NULL);
}
