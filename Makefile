# tandem's build. `make help` lists the targets.
#
# A fresh machine needs one command: `make deps run`, or `make deps test`, which installs more.
# Everything made lies in build/; build/VARIANT/ belongs to one compiler and set of sanitizers, and -nocuda to CUDA=0.

CC      ?= cc
PREFIX  ?= /usr/local
VERSION := $(shell sed -n 's/^.define TANDEM_VERSION "\([^"]*\)".*/\1/p' tensor/version.h)

# make SANITIZE=address,undefined | thread     make WERROR=1     make V=1     make CC=clang
SANITIZE ?=
WERROR   ?=
V        ?=
# make CUDA=auto|0|1     make CUDA_HOME=/usr/local/cuda     make CUDA_ARCHS="80 90"
CUDA       ?= auto
CUDA_HOME  ?=
CUDA_ARCHS ?=
# make EMULATE=1: what a machine may lack is done by software (tests/emulate/): CUDA's kernels run on the
# CPU, as two emulated GPUs; the CPU's instructions for bf16 and tiles, by AVX-512.
EMULATE ?=
# make KIT=1: programs that need no more libraries than go along with them (make gpu-kit).
KIT ?=
# The folders that go into the library: `make ROOMS="tensor autograd"` builds a part of it.
ROOMS ?= tensor autograd nn data dist apps/library
# Some tests only: make test TESTS="data step" (those whose names contain one of the words).
TESTS ?=
FUZZ_SECONDS ?= 60
# How far clang's analyzer follows each function (its own limit, max-nodes, is 225,000).
LINT_NODES   ?=

comma    := ,
compiler := $(notdir $(firstword $(CC)))
# A build without CUDA has a folder and findings of its own: it overwrites no other.
NOCUDA   := $(if $(filter 0,$(CUDA)),-nocuda)
VARIANT  := $(compiler)$(if $(KIT),-kit)$(if $(EMULATE),-emulated,$(NOCUDA))$(if $(SANITIZE),-$(subst $(comma),-,$(SANITIZE)))
B        := build/$(VARIANT)
# Objects that EMULATE changes nothing about are those of the build without it.
O        := build/$(subst -emulated,$(NOCUDA),$(VARIANT))
CONFIG   := build/config.$(compiler)$(if $(KIT),-kit)$(NOCUDA).mk

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:

# ---- make deps ... : install first, then do the rest in a make of its own, which detects again ----

CPUS  := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
DEPS  := $(filter deps deps-dev deps-cross deps-bench deps-bench-newest,$(MAKECMDGOALS))
AFTER := $(filter-out $(DEPS),$(MAKECMDGOALS))
ifneq ($(DEPS),)
.PHONY: $(DEPS) $(AFTER)
$(DEPS):
	@scripts/deps.sh $(patsubst deps%,install%,$@)$(if $(filter deps,$@),$(if $(filter test%,$(AFTER)),-test))
	@rm -f build/config.*.mk
$(firstword $(AFTER)): $(DEPS)
	@$(MAKE) --no-print-directory $(if $(filter -j%,$(MAKEFLAGS)),,-j$(CPUS)) $(AFTER)
$(wordlist 2,99,$(AFTER)): $(firstword $(AFTER))
	@:
else

# ---- what there is ----

# A room is a folder and what is below it, whatever that is called. Apart from it: tensor/cuda/, which is
# added where there is a toolkit, and dist's gloo/ and mpi/, which become libraries of their own.
sources   = $(sort $(shell find $(1) -name '$(2)'))
APART    := tensor/cuda/% dist/comm/engines/p2p/gloo/% dist/comm/engines/p2p/mpi/%
LIB_SRC  := $(filter-out $(APART),$(call sources,$(ROOMS),*.c))
# tensor/cuda/: added below, where it is known whether there is a toolkit.
CUDA_C   := $(if $(filter tensor,$(ROOMS)),$(call sources,tensor/cuda,*.c))
CUDA_CU  := $(if $(filter tensor,$(ROOMS)),$(call sources,tensor/cuda,*.cu))
# Programs: the lessons in apps/, the tools in apps/tools/, whose folders have what they share.
# examples/speedrun is a program with parts of its own, which tests use, too.
SPEEDRUN := examples/speedrun/cifar_speedrun.c
COMMON   := $(sort $(wildcard apps/tools/*/*.c) $(filter-out $(SPEEDRUN),$(wildcard examples/speedrun/*.c)))
APP_SRC  := $(sort $(wildcard apps/*.c apps/tools/*.c) $(SPEEDRUN))
# Tests, wherever in tests/ they lie. Their programs are build/VARIANT/tests/NAME.
TEST_SRC := $(call sources,tests,test_*.c)
LONG_SRC := $(call sources,tests,long_*.c)
FUZZ_SRC := $(call sources,tests,fuzz_*.c)
# Programs that tests start.
WORKER_SRC := $(call sources,tests,worker_*.c)
HELP_SRC := $(filter-out $(TEST_SRC) $(LONG_SRC) $(FUZZ_SRC) $(WORKER_SRC) \
              tests/emulate/% tests/count/% tests/gpu/check%,$(call sources,tests,*.c))
TEST_SCRIPTS := $(call sources,tests,test_*.sh)
BENCH_SRC := $(sort $(wildcard bench/bench_*.c))

# nvcc's objects are the same for all compilers and sanitizers.
CU_B     := $(if $(EMULATE),$(B),build/nvcc$(if $(KIT),-kit))
# What CUDA or EMULATE have flags for.
OWN      := tensor/cuda/% tensor/cpu/% tensor/backend.c dist/comm/engines/nccl/load.c bench/% tests/cuda/% tests/count/% \
            tests/emulate/% tests/gpu/% tests/comm/test_dist_nccl_api.c tests/tensor/test_cpu_emulated.c
place     = $(if $(filter %.cu,$(1)),$(CU_B),$(if $(filter $(OWN),$(1)),$(B),$(O)))
objects   = $(foreach s,$(1),$(call place,$(s))/$(patsubst %.c,%.o,$(patsubst %.cc,%.cc.o,$(s:.cu=.cu.o))))
programs  = $(patsubst %.c,$(B)/%,$(1))
tests_of  = $(patsubst %.c,$(B)/tests/%,$(notdir $(1)))
LIB      := $(B)/libtandem.a
# The shared library, of builds that are for use. A new minor version may change the interface of binaries.
ABI      := $(basename $(VERSION))
SHARED    = $(if $(SANITIZE)$(EMULATE),,$(if $(TD_SHARED),$(B)/libtandem.so.$(ABI)))
# apps/NAME, wherever in apps/ its source lies.
APP_SH   := $(sort $(wildcard apps/tools/*.sh))
APP_NAMES := $(addprefix apps/,$(basename $(notdir $(APP_SRC) $(APP_SH))))
APPS     := $(addprefix $(B)/,$(APP_NAMES))
SCRIPTS  := $(APP_SH:apps/tools/%.sh=$(B)/apps/%)
picked    = $(if $(TESTS),$(strip $(foreach p,$(TESTS),$(findstring $(p),$(notdir $(1))))),all)
TEST_BIN := $(foreach t,$(call tests_of,$(TEST_SRC)),$(if $(call picked,$(t)),$(t)))
TEST_SH  := $(foreach t,$(TEST_SCRIPTS),$(if $(call picked,$(t)),$(t)))
$(foreach p,$(TESTS),$(if $(findstring $(p),$(notdir $(TEST_SRC:.c=) $(TEST_SCRIPTS))),,\
    $(error TESTS: no test has '$(p)' in its name)))
# The test programs that chosen scripts start. A script names them whole, or by a beginning that ends in _.
NAMES    := $(if $(TESTS),$(if $(TEST_SH),$(shell grep -oh 'test_[a-z0-9_]*' $(TEST_SH))))
# Of chosen tests only scripts that name apps start any: test programs start none.
WITH_APPS := $(if $(TESTS),$(if $(TEST_SH),$(shell grep -l apps $(TEST_SH))),all)
STARTED  := $(filter $(addprefix $(B)/tests/,$(NAMES:%_=%_%)),$(call tests_of,$(TEST_SRC)))
LONG     := $(call tests_of,$(LONG_SRC))
LONG_SH  := $(call sources,tests,long_*.sh) tests/mutants.sh
BENCHES  := $(call programs,$(BENCH_SRC))
FUZZERS  := $(patsubst %.c,build/fuzz/%,$(notdir $(FUZZ_SRC)))

# ---- what the machine has ----

# Where nothing can be found out, for lack of a compiler, make stops here.
ifneq ($(filter-out clean help format docs site uninstall sizes,$(or $(MAKECMDGOALS),all)),)
include $(CONFIG)
endif

# A package that is installed later changes these folders, and with them what is found.
PKG_FOLDERS := $(wildcard /usr/include /usr/lib/pkgconfig /usr/lib/*/pkgconfig /usr/lib64/pkgconfig \
                          /usr/share/pkgconfig /usr/local/lib/pkgconfig)
# So do other wishes about CUDA.
CUDA_WISHES := build/cuda-wishes$(if $(KIT),-kit)$(NOCUDA)
$(shell mkdir -p build; printf '%s\n' '$(CUDA) $(CUDA_HOME) $(CUDA_ARCHS)' | cmp -s - $(CUDA_WISHES) || \
        printf '%s\n' '$(CUDA) $(CUDA_HOME) $(CUDA_ARCHS)' >$(CUDA_WISHES))
$(CONFIG): scripts/detect.sh $(PKG_FOLDERS) $(CUDA_WISHES)
	@CC="$(CC)" CXX="$(CXX)" CUDA="$(CUDA)" CUDA_HOME="$(CUDA_HOME)" CUDA_ARCHS="$(CUDA_ARCHS)" \
	    KIT="$(KIT)" scripts/detect.sh $@

ifeq ($(TD_HAVE_CJSON),) # make gpu-check can do without it; for all else, needs-core stops
LIB_SRC := $(filter-out $(shell grep -l 'cjson/cJSON.h' $(LIB_SRC)),$(LIB_SRC))
endif

# ---- how it is compiled ----

# -ffp-contract=off: the compiler must not fuse a*b+c on its own, or results would depend on it.
STD      := -std=c11 -D_GNU_SOURCE -ffp-contract=off
OPTIMIZE := -O3 -g -fno-math-errno -fno-trapping-math $(TD_SMALL_CFLAGS)
SMALL_LD := $(TD_SMALL_LDFLAGS)
WARN     := -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes $(if $(WERROR),-Werror)
ifneq ($(SANITIZE),)
OPTIMIZE := -O2 -g1 -fno-omit-frame-pointer -fno-math-errno -fno-trapping-math \
            -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -DTD_DEBUG=1 \
            $(if $(filter clang%,$(compiler)),-Wno-pass-failed) # clang: loops with checks are not vectorized
SMALL_LD :=
endif
ifneq ($(EMULATE),)
# The vendors' libraries, and what talks to them (cudnn*, cublas*), are replaced by tests/emulate/.
LIB_SRC   += $(filter-out tensor/cuda/cudnn% tensor/cuda/cublas%,$(CUDA_C)) $(CUDA_CU) \
             $(sort $(wildcard tests/emulate/*.c tests/emulate/*.cc))
CUDA_FLAGS := -DTD_HAVE_CUDA=1 -DTD_EMULATED=1
CUDA_CFLAGS := -Itests/emulate/include
CPU_FLAGS  := -include tests/emulate/instructions.h
# Wrapped: tests/emulate/watch.c.
CUDA_LIBS  := -lstdc++ $(addprefix -Wl$(comma)--wrap=,td_arena_take td_arena_give td_arena_reset td_arena_free td_cuda_take td_cuda_give \
              cudaStreamEndCapture)
NVCC       = $(CXX) -x c++ -std=c++17 $(filter-out -std=% -Wstrict-prototypes -Wpedantic,$(ALL_CFLAGS)) \
             -fno-exceptions -fno-rtti -fno-threadsafe-statics -fno-strict-aliasing $(CUDA_CFLAGS)
else ifneq ($(TD_HAVE_CUDA),)
LIB_SRC   += $(CUDA_C) $(CUDA_CU)
CUDA_FLAGS := -DTD_HAVE_CUDA=1
CUDA_CFLAGS := $(TD_CUDA_CFLAGS)
CUDA_LIBS  := $(TD_CUDA_LIBS)
NVCC       = $(TD_NVCC) $(TD_NVCCFLAGS) -Xcompiler -fvisibility=hidden $(if $(WERROR),-Werror all-warnings) -I.
endif
# Hidden: the shared library exports what public headers declare (tensor/extern_c.h), so other calls need no detour.
ALL_CFLAGS := $(STD) $(OPTIMIZE) $(TD_PIC) -fvisibility=hidden $(WARN) -I. -pthread $(TD_CFLAGS) $(CFLAGS)
ALL_LIBS   := $(TD_LIBS) $(CUDA_LIBS) -lm -ldl -pthread $(LDLIBS)

ifeq ($(V),)
say = @printf '%-5s %s\n' '$(1)' '$(2)';
Q   := @
endif

# Objects and programs depend on these files, which change when the flags do: those of all objects, those of
# objects of this build's own (OWN), and those of programs.
FLAGS     := $(O)/flags
OWN_FLAGS := $(B)/flags.own
LINKED    := $(B)/flags.link
told = $(shell mkdir -p $(dir $(1)); printf '%s\n' '$(2)' | cmp -s - $(1) || printf '%s\n' '$(2)' >$(1))
# (Goals that ask for no findings have no flags to tell.)
ifneq ($(TD_PIC),)
$(call told,$(FLAGS),$(CC) $(ALL_CFLAGS) $(TD_SHORT_LOOPS) $(TD_LOOPS_ONCE))
$(call told,$(OWN_FLAGS),$(CUDA_FLAGS) $(CUDA_CFLAGS) $(NVCC) $(CPU_FLAGS))
$(call told,$(LINKED),$(CC) $(ALL_CFLAGS) $(SMALL_LD) $(LDFLAGS) $(ALL_LIBS))
# The same for the list of objects in the library.
$(call told,$(B)/sources,$(LIB_SRC))
endif

# Sanitizers and the C library find functions of test programs by name.
$(sort $(B)/tests/%.o $(O)/tests/%.o): ALL_CFLAGS += -fvisibility=default
define compiled_in
$(1)/%.o: %.c $(FLAGS)
	@mkdir -p $$(@D)
	$$(call say,CC,$$<)$$(CC) $$(ALL_CFLAGS) -MMD -MP -c -o $$@ $$<
endef
$(foreach folder,$(sort $(B) $(O)),$(eval $(call compiled_in,$(folder))))

$(O)/data/images/bitmap_stb.o: ALL_CFLAGS += -fwrapv

# How a folder is optimized: for speed (-O3) where it computes, for size (-Os) where it handles words, files and
# sockets, and -O2 everywhere else. Files that differ from their folder are named in full.
FAST  := tensor/cpu/% tensor/cuda/% dist/sync_bn/% tests/% tensor/random.c tensor/access.c examples/speedrun/whitening.c \
         data/augment.c data/images_memory.c data/images/bitmap_jpeg.c data/images/bitmap_stb.c data/images/jitter.c data/images/resample.c \
         dist/comm/engines/reduce_math.c dist/comm/engines/p2p/reduce.c dist/ddp/extra/codec_half.c \
         dist/ddp/extra/codec_powersgd.c nn/io/fingerprint.c
SMALL := nn/io/% nn/models/% data/download/% dist/comm/launch/% dist/comm/store/% apps/% nn/extra/summary.c \
         data/wine.c data/csv.c data/cifar_files.c data/images/folder.c data/images/folder_list.c \
         data/images/folder_split.c dist/comm/queue.c dist/comm/watchdog.c dist/comm/report.c
BUILT := $(LIB_SRC) $(COMMON) $(APP_SRC)
# Tests are compiled in half of the time so; what they compare with computes much, and is in files of its own.
$(call objects,$(TEST_SRC) $(LONG_SRC)): ALL_CFLAGS += -O1
# Loops of f64 are for checking, and those for x86 without AVX2 for machines of before 2013: small. Those of AVX2
# and of bf16 have shorter code for what a vector leaves over, at the same speed.
$(B)/tensor/cpu/ops_loops_f64.o $(B)/tensor/cpu/ops_loops_f64_avx2.o: ALL_CFLAGS += -O2
ifneq ($(filter -O3,$(OPTIMIZE)),)
$(call objects,$(filter-out $(FAST) $(SMALL),$(BUILT))): ALL_CFLAGS += -O2
$(call objects,$(filter-out $(FAST),$(filter $(SMALL),$(BUILT)))): ALL_CFLAGS += -Os
$(B)/tensor/cpu/ops_loops_avx2.o $(B)/tensor/cpu/ops_loops_avx512_bf16.o: ALL_CFLAGS += $(TD_SHORT_LOOPS)
$(B)/tensor/cpu/gemm_kernels.o $(B)/tensor/cpu/bf16_neon.o: ALL_CFLAGS += $(TD_LOOPS_ONCE)
ifneq ($(TD_FOR_X86),)
$(B)/tensor/cpu/ops_loops_portable.o: ALL_CFLAGS += -O2
endif
endif
# Tiles of sums are local arrays that must stay in registers. The address sanitizer would put them
# into memory: half as fast, and twice as long to compile. What "undefined" sees of their bounds is left.
# (-O1: the same checks as -O2, in half of the time to compile.) In kernels a load through a null pointer, behind an
# object, or where a pointer has wrapped around is found by the address sanitizer alone.
ifneq ($(filter address,$(subst $(comma), ,$(SANITIZE))),)
$(B)/tensor/cpu/gemm_kernels.o: ALL_CFLAGS += -O1
$(B)/tensor/cpu/%.o: ALL_CFLAGS += $(if $(findstring undefined,$(SANITIZE)),-fno-sanitize=null$(comma)object-size$(comma)pointer-overflow)
$(B)/tensor/cpu/gemm_kernels.o $(B)/tensor/cpu/bf16_kernels.o $(B)/tensor/cpu/depthwise_kernels.o: \
    ALL_CFLAGS += $(if $(filter clang%,$(compiler)),-mllvm -asan-stack=0,--param=asan-stack=0)
endif
# What convolutions are compared with: plain loops of the tests, whose own checks would take half of the time.
ifneq ($(SANITIZE),)
$(call objects,tests/tensor/conv_case.c): ALL_CFLAGS += -fno-sanitize=all
endif

# Kernels: by nvcc, or by the C++ compiler for the emulated GPU.
$(B)/tensor/cuda/%.o: ALL_CFLAGS += $(CUDA_CFLAGS)
$(B)/tensor/backend.o: ALL_CFLAGS += $(CUDA_FLAGS)
$(B)/dist/comm/engines/nccl/load.o: ALL_CFLAGS += $(CUDA_FLAGS)
$(B)/tests/cuda/test_cuda_shard.o: ALL_CFLAGS += $(CUDA_FLAGS)
$(B)/tests/comm/test_dist_nccl_api.o $(patsubst %,$(B)/tests/cuda/test_cuda_%.o,launches loader memory plans): ALL_CFLAGS += $(CUDA_FLAGS) $(CUDA_CFLAGS)
$(call objects,$(filter $(OWN),$(filter %.c,$(LIB_SRC) $(TEST_SRC) $(wildcard tests/gpu/*.c tests/count/*.c)))): $(OWN_FLAGS)
CU_FLAGS := $(CU_B)/flags$(if $(EMULATE),.cu)
# Not before it is known which compiler that is: a new variant's first reading of this file would
# have every kernel compiled again.
ifneq ($(EMULATE)$(TD_NVCC),)
$(call told,$(CU_FLAGS),$(NVCC))
endif
$(CU_B)/%.cu.o: %.cu $(CU_FLAGS)
	@mkdir -p $(@D)
	$(call say,CU,$<)$(NVCC) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
ifneq ($(EMULATE),)
$(B)/tensor/cpu/%.o: ALL_CFLAGS += $(CPU_FLAGS)
$(B)/tensor/cpu/isa.o: ALL_CFLAGS += -DTD_EMULATED=1
$(B)/tests/tensor/test_cpu_emulated.o: ALL_CFLAGS += -DTD_EMULATED=1
$(B)/tests/emulate/%.o: ALL_CFLAGS += $(CUDA_CFLAGS)
$(B)/%.cc.o: %.cc $(FLAGS) $(OWN_FLAGS)
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(NVCC) -MMD -MP -c -o $@ $<
endif

$(LIB): $(call objects,$(LIB_SRC)) $(B)/sources
	$(call say,AR,$@)rm -f $@; $(AR) rcs $@ $(filter %.o,$^)

# The parts of a report's page, as C's lines.
PAGE := build/report/page.inc
$(PAGE): $(addprefix apps/tools/report/page.,html css js)
	@mkdir -p $(@D)
	$(call say,EMBED,$@)for f in $^; do echo "static const char *const page_$${f##*.}[] = {" && \
	    sed 's/[\\"]/\\&/g; s/.*/"&\\n",/' $$f && echo 'NULL };' || exit 1; done >$@
$(O)/apps/tools/report/page.o lint: $(PAGE)

# Objects of other libraries that are linked in stay inside.
$(B)/libtandem.so.$(ABI): $(LIB) scripts/exports.map $(LINKED)
	$(call say,LINK,$@)$(CC) $(ALL_CFLAGS) $(SMALL_LD) $(LDFLAGS) -shared -Wl,-soname,$(@F) $(TD_SHARED) \
	    -o $@ -Wl,--whole-archive $(LIB) -Wl,--no-whole-archive $(ALL_LIBS)

# The gloo and mpi backends: apart from the rest, loaded when they are asked for; only where their
# libraries are.
P2P      := dist/comm/engines/p2p
GLOO_SRC := $(sort $(wildcard $(P2P)/gloo/*.cc))
MPI_SRC  := $(sort $(wildcard $(P2P)/mpi/*.c))
BACKEND_LIBS := $(if $(filter dist,$(ROOMS)),$(if $(TD_HAVE_GLOO),$(if $(GLOO_SRC),$(B)/libtandem-gloo.so)) \
                  $(if $(TD_HAVE_MPI),$(if $(MPI_SRC),$(B)/libtandem-mpi.so)))
$(B)/libtandem-gloo.so: $(GLOO_SRC) $(P2P)/api.h $(P2P)/gloo/backoff.h $(FLAGS)
	$(call say,CXX,$@)$(TD_CXX) $(TD_GLOO_CXXFLAGS) -Wall -Wextra -I. -o $@ $(GLOO_SRC) $(TD_GLOO_LIBS)
$(B)/libtandem-mpi.so: $(MPI_SRC) $(P2P)/mpi/internal.h $(P2P)/api.h $(FLAGS)
	$(call say,MPICC,$@)$(TD_MPICC) $(TD_MPI_CFLAGS) $(WARN) -I. -o $@ $(MPI_SRC) -pthread

# What several tests share: references in double precision, golden files. Linked as needed.
$(B)/tests/libhelp.a: $(call objects,$(HELP_SRC))
	@mkdir -p $(@D)
	$(call say,AR,$@)rm -f $@; $(AR) rcs $@ $^

# Programs that are not for use are linked by the fastest linker.
fast_ld = $(if $(SANITIZE)$(EMULATE)$(filter $(B)/tests/%,$@),$(if $(LDFLAGS),,$(TD_FAST_LD)))
link = $(call say,LINK,$@)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) $(SMALL_LD) $(fast_ld) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter %.a,$^)

$(call programs,$(filter-out apps/tools/% examples/%,$(APP_SRC))): $(B)/apps/%: $(O)/apps/%.o
$(B)/apps/cifar_speedrun: $(O)/examples/speedrun/cifar_speedrun.o
$(patsubst apps/tools/%.c,$(B)/apps/%,$(filter apps/tools/%,$(APP_SRC))): $(B)/apps/%: $(O)/apps/tools/%.o
$(filter-out $(SCRIPTS),$(APPS)): $(call objects,$(COMMON)) $(LIB) $(LINKED)
	$(link) $(ALL_LIBS)
$(SCRIPTS): $(B)/apps/%: apps/tools/%.sh tensor/version.h
	@mkdir -p $(@D)
	$(call say,COPY,$@)sed 's/@VERSION@/$(VERSION)/' $< >$@ && chmod 755 $@

TEST_PROGRAMS := $(TEST_SRC) $(LONG_SRC) $(WORKER_SRC)
$(foreach s,$(TEST_PROGRAMS),$(eval $(call tests_of,$(s)): $(call objects,$(s))))
$(call tests_of,$(TEST_PROGRAMS)): $(B)/tests/libhelp.a $(call objects,$(COMMON)) $(LIB) $(LINKED)
	$(link) $(TD_TEST_LIBS) $(ALL_LIBS)

# Counts the launches of training steps: a stand-in comes before CUDA's runtime, of which nothing is linked then.
ifneq ($(if $(EMULATE),,$(TD_HAVE_CUDA)),)
COUNTS := $(B)/tests/test_cuda_launches
$(COUNTS): $(call objects,$(sort $(wildcard tests/count/*.c)))
$(COUNTS): TD_TEST_LIBS += -Wl,--wrap=td_cuda_vendor_conv,--wrap=td_cuda_vendor_matmul -lstdc++
$(B)/tests/count/%.o: ALL_CFLAGS += $(CUDA_CFLAGS)
endif

$(BENCHES): %: %.o $(LIB) $(LINKED)
	$(link) $(BENCH_LIBS) $(ALL_LIBS)

# The program of make gpu-check.
GPU_CHECK     := $(B)/tests/gpu/check
GPU_CHECK_OBJ := $(call objects,$(sort $(wildcard tests/gpu/check*.c)))
$(GPU_CHECK_OBJ): ALL_CFLAGS += $(CUDA_FLAGS) $(CUDA_CFLAGS)
$(GPU_CHECK): $(GPU_CHECK_OBJ) $(call objects,tests/autograd/ops_cases.c tests/nn/train_job.c) $(LIB) $(LINKED)
	$(link) $(ALL_LIBS)

# The sweeps over shapes have oneDNN beside them where it is.
SWEEPS := $(filter %_sweep,$(BENCHES))
$(SWEEPS): $(call objects,bench/sweep.c bench/sweep_conv.c bench/onednn.c)
$(SWEEPS): BENCH_LIBS = $(TD_ONEDNN_LIBS)
$(B)/bench/onednn.o: ALL_CFLAGS += $(TD_ONEDNN_CFLAGS)

# Other libraries' own all-reduce, for bench/allreduce.py.
PEERS := $(if $(TD_HAVE_GLOO),$(B)/bench/peer_gloo) $(if $(TD_HAVE_MPI),$(B)/bench/peer_openmpi)
$(B)/bench/peer_gloo: bench/peer_gloo.cc $(P2P)/gloo/backoff.cc bench/allreduce.h
	@mkdir -p $(@D)
	$(call say,CXX,$@)$(TD_CXX) -std=c++14 -O2 -Wall -Wextra -I. -o $@ $(filter %.cc,$^) $(TD_GLOO_LIBS)
$(B)/bench/peer_openmpi: bench/peer_openmpi.c bench/allreduce.h
	@mkdir -p $(@D)
	$(call say,MPICC,$@)$(TD_MPICC) -std=c11 -D_GNU_SOURCE -O2 $(WARN) -I. -o $@ $<

-include $(wildcard $(patsubst %.o,%.d,$(call objects,$(LIB_SRC) $(COMMON) $(APP_SRC) $(TEST_SRC) \
                    $(LONG_SRC) $(FUZZ_SRC) $(WORKER_SRC) $(HELP_SRC) $(wildcard bench/*.c tests/gpu/*.c tests/count/*.c))))

# ---- targets ----

.PHONY: all lib run test test-long tests bench benches docs site install uninstall lint format sizes fuzz fuzzers fuzz-torch clean help

all: lib $(APPS) ## the library and the apps (apps/NAME)
	@$(foreach a,$(APPS),ln -sfn ../$(a) apps/$(notdir $(a));)
.PHONY: links
links: $(APPS) # for whoever has not run make before; links that are there stay
	@$(foreach a,$(APPS),[ -e apps/$(notdir $(a)) ] || ln -sfn ../$(a) apps/$(notdir $(a));)

lib: needs-core $(LIB) $(SHARED) $(BACKEND_LIBS) ## the library alone: build/VARIANT/libtandem.a and .so

.PHONY: needs-core needs-tests
needs-core:
	@$(if $(TD_HAVE_CJSON),:,echo "make: libcjson is missing, and checkpoints need it: make deps" >&2; exit 1)
needs-tests: needs-core
	@$(if $(TD_HAVE_CMOCKA),:,echo "make: libcmocka is missing, and the tests need it: make deps test" >&2; exit 1)

run: all ## the main job: ResNet-18 on CIFAR-10 (fetched on the first run); ARGS="--epochs 1"
	apps/cifar_resnet18 --download $(ARGS)

tests: needs-tests lib $(if $(WITH_APPS),links) $(TEST_BIN) $(STARTED) $(call tests_of,$(WORKER_SRC)) $(if $(EMULATE)$(TD_NVCC),$(GPU_CHECK))
test: tests ## all tests; TESTS="data step": those with such names; SANITIZE=..., CC=clang
	@BUILD=$(B) SANITIZE=$(SANITIZE) NAMED="$(TESTS)" tests/run.sh $(TEST_BIN) $(TEST_SH)

.PHONY: aarch64
aarch64: ## AArch64 by a cross compiler, tested under qemu-user (make deps-cross)
	@BUILD=build/aarch64-linux-gnu-gcc-nocuda TEST_TIMEOUT=1800 tests/run.sh tests/aarch64.sh

test-long: tests $(LONG) $(B)/bench/bench_overlap ## all tests and the long ones
	@BUILD=$(B) SANITIZE=$(SANITIZE) TANDEM_LONG=1 TEST_TIMEOUT=7200 tests/run.sh $(TEST_BIN) \
	    $(TEST_SH) $(LONG) $(LONG_SH)

benches: lib $(BENCHES)

# Jobs whose names have these words: make bench BENCH="resnet18 b32, wine".
BENCH ?=
.PHONY: needs-python
needs-python:
	@command -v "$(or $(TD_PYTHON_TORCH),/usr/bin/python3)" >/dev/null || \
	    { echo "make: Python 3 is missing, and bench needs it: make deps-bench" >&2; exit 1; }
bench: needs-python lib $(APPS) $(BENCHES) $(PEERS) ## speed, side by side with PyTorch if it is there (make deps-bench); BENCH="resnet18 b32"
	@BUILD=$(B) PYTHON="$(TD_PYTHON_TORCH)" NEWEST=build/venv/bin/python ONLY="$(BENCH)" bash bench/run.sh

# CUDA on the machine at hand; with EMULATE=1 a trial of the check itself.
.PHONY: gpu-check gpu-kit
# (Checkpoints and the programs that write them need cJSON; the check itself does not.)
GPU_CHECK_ALL := $(GPU_CHECK) \
    $(if $(TD_HAVE_CJSON),$(addprefix $(B)/,apps/cifar_resnet18 apps/cifar_speedrun tests/worker_ddp tests/worker_captured))
gpu-check: $(GPU_CHECK_ALL) ## everything that needs a GPU, in under ten minutes (docs/gpu-check.md)
	@BUILD=$(B) EMULATE=$(EMULATE) bash tests/gpu/check.sh
gpu-kit: ## build/gpu-kit.tar.gz: the same to be carried to a machine with a GPU and little else
	@$(MAKE) --no-print-directory KIT=1 CUDA_ARCHS="$(or $(CUDA_ARCHS),90)" packed-kit
.PHONY: packed-kit
packed-kit: $(GPU_CHECK_ALL)
	@BUILD=$(B) bash tests/gpu/kit.sh build/gpu-kit.tar.gz

docs: ## the API by module, from the headers: build/docs/html (needs doxygen)
	@command -v doxygen >/dev/null || \
	    { echo "make: doxygen is missing: make deps-dev, or apt-get install doxygen" >&2; exit 1; }
	@mkdir -p build/docs
	doxygen docs/Doxyfile

site: ## the documents as pages with a search: build/site/html (needs mkdocs)
	@command -v mkdocs >/dev/null || \
	    { echo "make: mkdocs is missing: make deps-dev, or apt-get install mkdocs" >&2; exit 1; }
	@mkdir -p build/site
	python3 scripts/site.py build/site
	mkdocs build -q -s -f build/site/mkdocs.yml

# The public headers beside tandem.h, and all that they reach, as the compiler lists them.
PUBLIC  := tandem.h tensor/extend.h tensor/f16.h tensor/part.h tensor/extra/dlpack.h tensor/extra/dlpack_abi.h tensor/tune/tune.h tensor/graph/captured.h \
           tensor/observe/profile.h tensor/observe/memory_plan.h tensor/observe/watch.h tensor/hooks.h autograd/tape.h autograd/hooks.h autograd/gradcheck.h \
           nn/module.h nn/around.h nn/onnx/onnx.h nn/io/safetensors.h nn/io/fingerprint.h nn/extra/ema.h nn/extra/scaler.h nn/extra/muon.h nn/extra/layers.h nn/extra/optimizers.h nn/extra/compact.h nn/extra/schedules.h \
           nn/extra/inspect.h nn/extra/lora.h nn/models/files/gpt_files.h \
           dist/comm/store.h dist/comm/collectives.h dist/comm/mesh.h dist/ddp/codec.h dist/ddp/extra.h dist/graph/captured.h dist/trace.h \
           data/inspect.h data/text/tokenizer.h
headers = $(sort $(filter %.h %.def,$(shell $(CC) -I. -MM $(PUBLIC))))
# Debian's libraries are in /usr/lib/x86_64-linux-gnu. Programs need no path of their own to /usr's.
LIBDIR  ?= $(PREFIX)/lib
STRIP   ?= strip
TO       = $(DESTDIR)$(PREFIX)
TO_LIB   = $(DESTDIR)$(LIBDIR)
RPATH    = $(if $(filter /usr,$(PREFIX)),,-Wl$(comma)-rpath$(comma)$${libdir})
TOOLS   := tdrun train_net test_net predict gpt tokenize compare plot_runs report cifar_resnet18
install: lib $(addprefix $(B)/apps/,$(TOOLS)) ## all that users need into $(PREFIX); DESTDIR=... LIBDIR=...
	@install -d "$(TO_LIB)/pkgconfig" "$(TO)/bin" 2>/dev/null && test -w "$(TO_LIB)" || { echo \
	    "make: $(TO) cannot be written: install as root, or for yourself: make install PREFIX=\$$HOME/tandem" >&2; exit 1; }
	install -m 644 $(LIB) "$(TO_LIB)"
	$(if $(SHARED),install -m 755 -s --strip-program=$(STRIP) $(SHARED) "$(TO_LIB)" && \
	    ln -sf $(notdir $(SHARED)) "$(TO_LIB)/libtandem.so")
	$(if $(strip $(BACKEND_LIBS)),install -m 755 -s --strip-program=$(STRIP) $(BACKEND_LIBS) "$(TO_LIB)")
	install -m 755 -s --strip-program=$(STRIP) $(addprefix $(B)/apps/,$(filter-out plot_runs,$(TOOLS))) "$(TO)/bin"
	install -m 755 $(B)/apps/plot_runs "$(TO)/bin"
	@set -e; for h in $(headers); do install -D -m 644 $$h "$(TO)/include/tandem/$$h"; done
	@install -d "$(TO)/share/tandem/config" && install -m 644 apps/tools/config/*.yaml "$(TO)/share/tandem/config"
	@install -m 644 data/wine.csv "$(TO)/share/tandem"
	@sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|; s|@RPATH@|$(RPATH)|' \
	    -e 's|@LIBS@|$(strip $(ALL_LIBS))|' scripts/tandem.pc.in >"$(TO_LIB)/pkgconfig/tandem.pc"
# What --help prints, as a manual page and for the shell's Tab key; not by a cross compiler's programs.
	@install -d "$(TO)/share/man/man1" "$(TO)/share/bash-completion/completions"
	@for t in $(TOOLS); do $(B)/apps/$$t --help >/dev/null 2>&1 || continue; \
	    scripts/pages.sh man $$t $(B)/apps/$$t $(VERSION) >"$(TO)/share/man/man1/$$t.1" && \
	    scripts/pages.sh completion $$t $(B)/apps/$$t $(VERSION) \
	        >"$(TO)/share/bash-completion/completions/$$t" || exit 1; done
	@echo "installed into $(TO); use: cc app.c \$$(pkg-config --cflags --libs tandem)"
	@case ":$$PKG_CONFIG_PATH:$$(pkg-config --variable pc_path pkg-config 2>/dev/null):" in \
	    *:"$(LIBDIR)/pkgconfig":*) ;; \
	    *) echo 'first: export PKG_CONFIG_PATH="$(LIBDIR)/pkgconfig$${PKG_CONFIG_PATH:+:$$PKG_CONFIG_PATH}"' ;; esac

uninstall: ## takes them away again
	rm -rf "$(TO)/include/tandem" "$(TO)/share/tandem" "$(TO_LIB)"/libtandem.a "$(TO_LIB)"/libtandem.so* \
	    "$(TO_LIB)/libtandem-gloo.so" "$(TO_LIB)/libtandem-mpi.so" "$(TO_LIB)/pkgconfig/tandem.pc" \
	    $(foreach t,$(TOOLS),"$(TO)/bin/$(t)" "$(TO)/share/man/man1/$(t).1" "$(TO)/share/bash-completion/completions/$(t)")

.PHONY: deb
deb: lib $(addprefix $(B)/apps/,$(TOOLS)) ## packages for this Debian or Ubuntu: build/deb/*.deb
	@MAKE="$(MAKE)" VERSION=$(VERSION) ABI=$(ABI) scripts/deb.sh build/deb

lint: ## format, words, opening comments, suspicious code (clang-format, clang-tidy); LINT_NODES=20000 looks less deep
	@LINT_NODES=$(LINT_NODES) scripts/lint.sh $(TD_CFLAGS)

format: ## puts all sources into the project's format
	@scripts/format.sh -i

sizes: ## lines of code by folder next to the plan, fails above it; SINCE=COMMIT compares with that
	@CC="$(CC)" python3 scripts/sizes.py $(SINCE)

# Fuzz targets are programs of clang's build with these sanitizers, in which what reads input tells the fuzzer
# where it goes: it is compiled once for them and for the tests.
CHECKED := build/clang-nocuda-address-undefined
READERS := data/% nn/io/% nn/models/files/% dist/comm/% tensor/tune/% apps/% tests/fuzz/%
ifeq ($(B),$(CHECKED))
$(call objects,$(filter $(READERS),$(LIB_SRC) $(COMMON) $(FUZZ_SRC))): ALL_CFLAGS += -fsanitize=fuzzer-no-link
$(foreach s,$(FUZZ_SRC),$(eval build/fuzz/$(basename $(notdir $(s))): $(call objects,$(s))))
$(FUZZERS): $(call objects,$(COMMON)) $(LIB) $(LINKED)
	$(link) -fsanitize=fuzzer $(ALL_LIBS)
fuzzers: $(FUZZERS)
else
fuzzers:
	@$(MAKE) --no-print-directory CC=clang CUDA=0 EMULATE= KIT= SANITIZE=address,undefined $@
endif
fuzz: fuzzers ## the parsers against invented input; FUZZ_SECONDS=60 for pictures, settings (needs clang)
	@scripts/fuzz.sh $(FUZZ_SECONDS) $(FUZZERS)

fuzz-torch: $(B)/tests/worker_programs ## random programs in tandem and in PyTorch (TANDEM_PYTHON has torch); FUZZ_SECONDS=60
	@$(or $(TANDEM_PYTHON),$(TD_PYTHON_TORCH),python3) tests/fuzz/fuzz_torch.py $< $(FUZZ_SECONDS)

clean: ## removes build/ and the apps' links
	rm -rf build $(APP_NAMES)

endif

help: ## this list
	@printf 'tandem %s\n\n' "$(VERSION)"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-17s %s\n", $$1, $$2}' Makefile
	@printf '  make %-17s %s\n' \
	    deps 'installs (Debian, Ubuntu) or names what building needs; deps test: what tests need, too' \
	    deps-dev 'the same for lint, fuzz and API pages' \
	    deps-cross 'the same for AArch64: a cross compiler, qemu-user, libraries of arm64' \
	    deps-bench 'the same for bench: PyTorch, oneDNN' \
	    deps-bench-newest 'PyTorch from PyPI into build/venv (6 GB: it comes with CUDA)'
	@printf '\n  make deps run     on a fresh machine: from nothing to the main job\n'
	@printf '  make deps test    on a fresh machine: from nothing to all tests\n'
	@printf '\n  V=1 whole commands  WERROR=1 warnings are errors  CC=clang  SANITIZE=address,undefined\n'
	@printf '  CUDA=auto|0|1  CUDA_HOME=...  CUDA_ARCHS="80 90"\n'
	@printf '  EMULATE=1 CUDA code on two emulated GPUs, AMX on any AVX-512\n'
