/* What backoff.cc tells the shim. */
#pragma once

/* CPU seconds of libgloo's event loops, those of all groups. */
double td_gloo_loop_seconds();
