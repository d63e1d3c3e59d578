# kvlab: every entry point. `make help` lists the targets.
# Each variable below can be set on the command line: make CC=clang-14 WERROR= BUILD=build/clang bench-slope

BUILD  ?= build
OUT    ?= $(or $(patsubst --out=%,%,$(lastword $(filter --out=%,$(subst --out ,--out=,$(ARGS))))),results)
CFLAGS ?= -O3 -g
WERROR ?= -Werror
TEST   ?= *
export KVLAB_DATA ?= data
ifeq ($(origin CC),default)
CC := gcc
endif

ifeq ($(MAKELEVEL)$(findstring -j,$(MAKEFLAGS)),0) # all cores, unless the user says otherwise
MAKEFLAGS += -j$(shell nproc)
endif
.DELETE_ON_ERROR:
.SECONDARY:
.DEFAULT_GOAL := all

EXPERIMENTS := $(basename $(notdir $(wildcard bench/*.md)))
SOURCES     := $(wildcard kernels/*.c kernels/cpu/*.c engine/*.c engine/*/*.c bench/*.c bench/harness/*.c)
HEADERS     := $(wildcard kernels/*.h kernels/cpu/*.h engine/*.h engine/*/*.h bench/*.h bench/harness/*.h tests/*.h)
TESTS       := $(sort $(basename $(notdir $(wildcard tests/test_$(TEST).c $(if $(CROSS),,tests/test_$(TEST).cpp)))))
STANDIN     := $(wildcard tests/standin/*.cpp) # the device for machines without a GPU
FORMATTED    = $(SOURCES) $(HEADERS) $(CUDA_SOURCES) $(CUDA_HEADERS) $(wildcard tests/*.c tests/*.cpp \
    tests/standin/*.[ch]* tests/standin/include/*.h)
SUPPORT     := $(filter-out tests/test_%,$(wildcard tests/*.c)) # linked into every test
OBJECTS      = $(SOURCES:%.c=$(BUILD)/%.o)

# ---- CUDA: NVCC=/path/to/nvcc says where, CUDA=0 goes without; CUDA_ARCH='-arch=sm_90' builds for one card only

CUDA ?= 1
CUDA_SOURCES := $(wildcard kernels/cuda/*.cu)
CUDA_HEADERS := $(wildcard kernels/cuda/*.h kernels/cuda/*.cuh)
ifneq ($(CUDA)$(CROSS),1)
NVCC :=
else ifndef NVCC
NVCC := $(or $(shell command -v nvcc),$(firstword $(wildcard $(CUDA_HOME)/bin/nvcc /usr/local/cuda/bin/nvcc)))
endif
GPU := $(firstword $(wildcard /proc/driver/nvidia/gpus/* /dev/nvidia0 /dev/dxg))
# For the card that is here; else for all that the harness is meant for, and portable code for later ones.
CUDA_ARCH ?= $(if $(GPU),-arch=native,$(foreach n,75 80 86 89 90,-gencode arch=compute_$n$(comma)code=sm_$n) \
    -gencode arch=compute_90$(comma)code=compute_90)
comma := ,
CUDA_DEVICE = $(if $(NVCC),$(BUILD)/libkvlab-cuda.so)

# ---- packages: what each kind of target needs, by Debian's names

PACKAGES_build := $(filter gcc,$(CC)) libc6-dev libdnnl-dev libjansson-dev libcsv-dev libpcre2-dev libutf8proc-dev
PACKAGES_plots := gnuplot-nox
PACKAGES_tests := g++ libcmocka-dev
PACKAGES_lint  := clang-format clang-tidy libomp-dev
PACKAGES_arm64 := gcc-aarch64-linux-gnu qemu-user
ifdef CROSS # built for another machine (see arm64): the compiler is this machine's, the libraries lie in SYSROOT
PACKAGES_build := $(PACKAGES_$(CROSS))
PACKAGES_tests :=
endif

## deps: install what building, plotting and testing need, if missing (NO_DEPS=1: only say what is missing)
deps:
	@$(ENSURE) $(PACKAGES_build) $(PACKAGES_plots) $(PACKAGES_tests)
deps-build deps-plots deps-tests deps-lint: deps-%:
	@$(ENSURE) $(PACKAGES_$*)
ENSURE = mkdir -p build && exec 9> build/deps.lock && flock 9 && NO_DEPS='$(NO_DEPS)' .ci/deps

# ---- build

## all: build/kvlab, and the CUDA device where nvcc is found (what a plain `make` does)
all: $(BUILD)/kvlab $(CUDA_DEVICE)
	@echo "cuda: $(if $(NVCC),yes ($$($(NVCC) --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')$(if \
	    $(GPU),$(comma) for the card in this machine)),no ($(if $(filter 0,$(CUDA)),CUDA=0,no \
	    nvcc on PATH, in CUDA_HOME or /usr/local/cuda)))"

# The probe: the compiler's target, asked when the first object is made (there may be no compiler before that).
TARGET = $(eval TARGET := $$(shell $(CC) -dumpmachine))$(TARGET)

# Variants for processors that have more than the baseline are chosen at run time; no -march=native, so that a build
# made on one machine runs on another.
AVX2       := -mavx2 -mfma -mf16c
AVX512     := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq
AVX512BF16 := $(AVX512) -mavx512bf16
VARIANT     = $(if $(filter x86_64%,$(TARGET)),$(if $(filter %_avx2.c,$<),$(AVX2))$(if \
    $(filter %_avx512.c,$<),$(AVX512))$(if $(filter %_avx512bf16.c,$<),$(AVX512BF16)))
# Fused multiply-adds in kernels, where the baseline has them (aarch64); ISO arithmetic, one result everywhere, elsewhere.
CONTRACT    = -ffp-contract=$(if $(filter kernels/%,$<),fast,off)
WARNINGS   := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes $(WERROR)
LANGUAGE   := -std=c11 -D_GNU_SOURCE -I. $(WARNINGS)
# Where the data lie, in the one object that wants to know: elsewhere a path would make every checkout's objects differ.
SOURCE_DIR  = $(if $(filter engine/config_find.c,$<),-DKVLAB_SOURCE_DIR='"$(CURDIR)"')
COMPILE     = $(CC) $(LANGUAGE) $(SOURCE_DIR) -fopenmp $(CFLAGS) $(CPPFLAGS) $(CONTRACT) $(VARIANT) -MMD -MP
LIBRARIES  := -ldnnl -ljansson -lcsv -lpcre2-8 -lutf8proc -lm -ldl

SAY         = @$(if $(V),,echo "$(1)";) # V=1 shows the commands
Q           = $(if $(V),,@)

$(BUILD)/%.o: %.c Makefile | deps-build
	@mkdir -p $(@D)
	$(call SAY,cc $<)
	$(Q)$(COMPILE) -c $< -o $@

$(BUILD)/kvlab: $(OBJECTS)
	$(Q)$(CC) -fopenmp $(CFLAGS) $(LDFLAGS) $^ $(LIBRARIES) -o $@
	@echo "$@: $(TARGET), cpu: portable $(if $(filter x86_64%,$(TARGET)),avx2 avx512 avx512bf16)"

## cuda: build/libkvlab-cuda.so alone; no nvcc is an error. A kernel that spills registers fails the build
cuda: $(BUILD)/libkvlab-cuda.so
	@$(if $(NVCC),,echo "cuda: no nvcc: set NVCC or CUDA_HOME, or put it on PATH" >&2; exit 1)

cuda-found:
	@echo $(if $(NVCC),yes,no)

CUPTI_FOLDERS = $(wildcard $(addprefix $(dir $(NVCC))../,extras/CUPTI/$(1) $(1)))
NVCC_COMPILE = $(NVCC) -std=c++17 -O3 -lineinfo -I. $(addprefix -I,$(call CUPTI_FOLDERS,include)) $(CUDA_ARCH) -Xcompiler -fPIC$(comma)-fvisibility=hidden \
    -Xcompiler -Wall$(comma)-Wextra$(if $(WERROR),$(comma)-Werror -Werror all-warnings) -Xptxas -v -MMD -MP
CUDA_OBJECTS = $(CUDA_SOURCES:%.cu=$(BUILD)/cuda/%.o) $(BUILD)/cuda/kernels/errors.o $(BUILD)/cuda/kernels/dtype.o
ifneq ($(NVCC),)
$(BUILD)/cuda/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(call SAY,nvcc $<)
	$(Q)$(NVCC_COMPILE) -c $< -o $@ > $@.log 2>&1 || { cat $@.log >&2; exit 1; }
	$(Q)kernels/cuda/check_spills $@.log
$(BUILD)/cuda/kernels/%.o: kernels/%.c Makefile | deps-build
	@mkdir -p $(@D)
	$(call SAY,cc $< for the CUDA device)
	$(Q)$(COMPILE) -fPIC -fvisibility=hidden -c $< -o $@
$(BUILD)/libkvlab-cuda.so: $(CUDA_OBJECTS)
	$(Q)$(NVCC) -shared -cudart static $(CUDA_ARCH) $^ -lcublas -ldl \
	    $(foreach folder,$(call CUPTI_FOLDERS,lib64) $(wildcard $(dir $(NVCC))../lib),-Xlinker -rpath=$(abspath \
	    $(folder))) -o $@
	@echo "$@: $(CUDA_ARCH)"
endif

# ---- experiments: MODEL=qwen2.5-1.5b  QUICK=1  ARGS='--contexts 512,1024'  OUT=folder

PLOT = gnuplot -e "name='$(1)'; results='$(OUT)'; lessons='data/lessons'" plots/$(1).gp
RUN_OPTIONS = $(if $(MODEL),--model '$(MODEL)') $(if $(filter-out 0,$(QUICK)),--quick) \
    $(if $(findstring --out,$(ARGS)),,--out '$(OUT)') $(ARGS)

## bench-<experiment>: measure, print the table, write results/<experiment>.csv and its plot
bench-%: $(BUILD)/kvlab $(if $(GPU),$(CUDA_DEVICE)) | deps-plots
	@exec 9> build/bench.lock; flock 9; status=0; \
	$(BUILD)/kvlab run $* $(RUN_OPTIONS) || status=$$?; \
	if [ $$status -le 1 ] && [ -e '$(OUT)/$*.csv' ]; then $(call PLOT,$*) || exit; fi; \
	case $$status in \
	0) ;; \
	1) echo "bench-$*: measured, but a check failed (exit status 1): see above, and the rows in $(OUT)/$*.csv" >&2 ;; \
	2) echo "bench-$*: bad usage or bad input (exit status 2): see the line above" >&2 ;; \
	3) echo "bench-$*: the device could not do it (exit status 3): see the line above" >&2 ;; \
	*) echo "bench-$*: kvlab ended with status $$status" >&2 ;; \
	esac; exit $$status

## bench-peers: kvlab beside PyTorch + transformers and llama.cpp in one run (bench/peers/README.md; gets them with Python)
bench-peers: $(BUILD)/kvlab | deps-plots
	@bench/peers/setup build/peers
	@exec 9> build/bench.lock; flock 9; build/peers/venv/bin/python bench/peers/peers.py --kvlab '$(BUILD)/kvlab' \
	    $(if $(MODEL),--model '$(MODEL)') --out '$(OUT)' $(ARGS)
	@$(call PLOT,peers)

## labs: all experiments, one after the other
labs: $(BUILD)/kvlab $(if $(GPU),$(CUDA_DEVICE)) | deps-plots
	@failed=; for name in $(EXPERIMENTS); do \
	    $(MAKE) --no-print-directory bench-$$name || failed="$$failed $$name"; \
	done; [ -z "$$failed" ] || { echo "labs: failed:$$failed" >&2; exit 1; }

## audit: recompute the published numbers of data/lessons/claims.csv (CLAIMS=file.csv for others), into results/audit.md
audit: $(BUILD)/kvlab
	@$(BUILD)/kvlab audit '$(or $(CLAIMS),data/lessons/claims.csv)' $(if $(findstring --out,$(ARGS)),,--out '$(OUT)') $(ARGS)

## plots: draw the plots of all results/*.csv again; measures nothing (OUT=results/reference for another folder)
plots: | deps-plots
	@drawn=0; for name in $(EXPERIMENTS); do \
	    [ -e "$(OUT)/$$name.csv" ] || continue; \
	    $(call PLOT,$$name) || exit; drawn=$$((drawn + 1)); \
	done; echo "plots: $$drawn drawn in $(OUT)"; \
	[ $$drawn -gt 0 ] || { echo "plots: no result in $(OUT): measure first (make labs)" >&2; exit 1; }

# ---- checks

## test: build and run all tests (TEST=config: only tests/test_config.c)
test: $(TESTS:%=$(BUILD)/tests/%) $(BUILD)/kvlab
	@KVLAB_TESTS=tests KVLAB_BIN='$(BUILD)/kvlab' KVLAB_DATA=data KVLAB_RUNNER='$(RUNNER)' \
	    tests/run $(TESTS:%=$(BUILD)/tests/%)

$(BUILD)/tests/%.o: tests/%.c Makefile | deps-build deps-tests
	@mkdir -p $(@D)
	$(call SAY,cc $<)
	$(Q)$(COMPILE) -c $< -o $@

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(SUPPORT:%.c=$(BUILD)/%.o) $(filter-out $(BUILD)/bench/main.o,$(OBJECTS))
	$(Q)$(CC) -fopenmp $(CFLAGS) $(LDFLAGS) $^ -lcmocka $(LIBRARIES) -o $@

# CUDA sources as g++ takes them, for the stand-in device (tests/standin/README.md), and objects that run on it. Kernels
# ask the stand-in before each access of memory, except in a build with AddressSanitizer, which has its own way.
CHECKED         = $(if $(findstring -fsanitize=,$(CFLAGS)),,-fsanitize=kernel-address,alignment \
    -fno-sanitize-recover=alignment --param asan-instrumentation-with-call-threshold=0 --param asan-stack=0 \
    --param asan-globals=0 -DSTANDIN_CHECKED)
STANDIN_COMPILE = $(CXX) -std=c++17 -D_GNU_SOURCE -I. -Itests/standin/include -Wall -Wextra -Wshadow \
    -Wno-unknown-pragmas $(WERROR) $(CFLAGS) $(CPPFLAGS) -fPIC -ffp-contract=off -MMD -MP
STANDIN_OBJECTS = $(STANDIN:%.cpp=$(BUILD)/%.o)

$(STANDIN_OBJECTS): $(BUILD)/%.o: %.cpp Makefile | deps-build deps-tests
	@mkdir -p $(@D)
	$(call SAY,c++ $<)
	$(Q)$(STANDIN_COMPILE) -c $< -o $@

$(BUILD)/tests/%.o: tests/%.cpp Makefile | deps-build deps-tests
	@mkdir -p $(@D)
	$(call SAY,c++ $<)
	$(Q)$(STANDIN_COMPILE) $(CHECKED) -c $< -o $@

$(BUILD)/tests/test_standin_%: $(BUILD)/tests/test_standin_%.o $(STANDIN_OBJECTS)
	$(Q)$(CXX) $(CFLAGS) $(LDFLAGS) $^ -lcmocka -ldl -o $@

# CUPTI's host side needs no device: with the toolkit's headers where they are, else with the stand-in's, and fewer tests.
CUPTI_COMPILE = $(CXX) -std=c++17 -D_GNU_SOURCE -I. $(if $(NVCC),$(addprefix -isystem ,$(call \
    CUPTI_FOLDERS,include)),-Itests/standin/include) -Wall -Wextra $(WERROR) \
    $(CFLAGS) $(CPPFLAGS) -MMD -MP
CUPTI_PARTS   = $(BUILD)/tests/cupti/test_cupti.o $(BUILD)/tests/cupti/cupti_library.o $(BUILD)/tests/cupti/cupti_host.o
$(BUILD)/tests/cupti/%.o: kernels/cuda/%.cu Makefile | deps-build deps-tests
	@mkdir -p $(@D)
	$(Q)$(CUPTI_COMPILE) -x c++ -c $< -o $@
$(BUILD)/tests/cupti/%.o: tests/%.cpp Makefile | deps-build deps-tests
	@mkdir -p $(@D)
	$(call SAY,c++ $<)
	$(Q)$(CUPTI_COMPILE) -c $< -o $@
$(BUILD)/tests/test_cupti: $(CUPTI_PARTS) $(BUILD)/kernels/errors.o $(if $(NVCC),,$(STANDIN_OBJECTS))
	$(Q)$(CXX) -fopenmp $(CFLAGS) $(LDFLAGS) $^ -lcmocka -ldl -o $@

## test-standin: the tests that a device must pass, and the first experiments, through the CUDA sources on the stand-in
STANDIN_TESTS  := kernels attention sample kv_ops forward window kv_evict speculative golden cuda
STANDIN_DEVICE  = $(CUDA_SOURCES:%.cu=$(BUILD)/standin/%.o) $(BUILD)/standin/kernels/errors.o \
    $(BUILD)/standin/kernels/dtype.o
test-standin: $(STANDIN_TESTS:%=$(BUILD)/standin/test_%) $(BUILD)/standin/kvlab $(BUILD)/standin/libkvlab-cuda.so
	@tests/run_standin $(BUILD)/standin $(STANDIN_TESTS)
$(BUILD)/standin/%.o: %.cu Makefile | deps-build deps-tests
	@mkdir -p $(@D)
	$(call SAY,c++ $< for the stand-in)
	$(Q)$(STANDIN_COMPILE) $(CHECKED) -Wno-shadow -fvisibility=hidden -x c++ -c $< -o $@
$(BUILD)/standin/kernels/%.o: kernels/%.c Makefile | deps-build
	@mkdir -p $(@D)
	$(Q)$(COMPILE) -fPIC -fvisibility=hidden -c $< -o $@
$(BUILD)/standin/libkvlab-cuda.so: $(STANDIN_DEVICE) $(STANDIN_OBJECTS)
	$(Q)$(CXX) -shared -Wl,-Bsymbolic-functions $(CFLAGS) $(LDFLAGS) $^ -ldl -o $@
$(BUILD)/standin/kvlab: $(BUILD)/kvlab # a device's library is looked for beside the program
	@mkdir -p $(@D)
	$(Q)cp $< $@
$(BUILD)/standin/test_%: $(BUILD)/tests/test_%
	@mkdir -p $(@D)
	$(Q)cp $< $@
## gpu-check: on a machine with a GPU: build, test, measure, and say which targets hold, in under ten minutes
gpu-check:
	@BUILD='$(BUILD)' MAKE='$(MAKE)' tests/gpu_check '$(if $(filter results,$(OUT)),results/gpu-check,$(OUT))'
## gpu-check-bundle: what gpu-check needs of Debian's packages, in build/bundle, for a machine that can install nothing
gpu-check-bundle: | deps-build deps-tests
	@tests/gpu_bundle build/bundle $(filter-out gcc libc6-dev,$(PACKAGES_build)) $(filter-out g++,$(PACKAGES_tests))
## test-sanitize: the same tests under AddressSanitizer and UndefinedBehaviorSanitizer
test-sanitize:
	@$(MAKE) --no-print-directory test BUILD=$(BUILD)/sanitize \
	    ASAN_OPTIONS='allow_user_segv_handler=0:$(ASAN_OPTIONS)' \
	    CFLAGS='-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer'

## lint: formatting and clang-tidy, warnings are errors
lint: lint-format $(patsubst %.c,$(BUILD)/lint/%.ok,$(SOURCES) $(wildcard tests/*.c))
	@echo "lint: clean"
lint-format: | deps-lint
	@clang-format --dry-run -Werror $(FORMATTED)
$(BUILD)/lint/%.ok: %.c $(HEADERS) .clang-tidy tests/.clang-tidy | deps-build deps-tests deps-lint
	@mkdir -p $(@D)
	$(call SAY,tidy $<)
	$(Q)clang-tidy --quiet $< -- $(LANGUAGE) -fopenmp $(VARIANT) > $@.log 2>&1 || { cat $@.log; exit 1; }
	@touch $@

## format: bring all C files into the project's format
format: | deps-lint
	clang-format -i $(FORMATTED)

## arm64: cross build for aarch64, in build/arm64
## test-arm64: run the tests of the cross build under qemu
SYSROOT = $(BUILD)/arm64/sysroot
ARM64   = CROSS=arm64 CC=aarch64-linux-gnu-gcc BUILD=$(BUILD)/arm64 CFLAGS='$(CFLAGS) --sysroot=$(abspath $(SYSROOT))' \
          RUNNER=qemu-aarch64
arm64 test-arm64: %arm64: | sysroot-arm64
	@QEMU_LD_PREFIX='$(abspath $(SYSROOT))' $(MAKE) --no-print-directory $(if $*,test,all) $(ARM64)
sysroot-arm64:
	@NO_DEPS='$(NO_DEPS)' .ci/sysroot arm64 $(SYSROOT) libc6-dev libdnnl-dev libjansson-dev libcsv-dev libpcre2-dev \
	    libutf8proc-dev libcmocka-dev

## clean: remove everything built (results stay)
clean:
	rm -rf build

## help: this list
help:
	@sed -n 's/^## \([^:]*\): */  \1\t/p' Makefile | expand -t 22
	@echo; echo "Experiments, as make bench-<name>; MODEL=name  QUICK=1  ARGS='--contexts 512,1024' go through to kvlab:"
	@sed -s -n '1s/^# \([^:]*\): */  \1\t/p' bench/*.md | expand -t 22

.PHONY: all cuda cuda-found deps deps-build deps-plots deps-tests deps-lint bench-peers labs audit plots test test-standin \
    test-sanitize gpu-check gpu-check-bundle lint lint-format format arm64 test-arm64 sysroot-arm64 clean help
-include $(OBJECTS:.o=.d) $(TESTS:%=$(BUILD)/tests/%.d) $(SUPPORT:%.c=$(BUILD)/%.d) $(STANDIN_OBJECTS:.o=.d) \
    $(CUDA_OBJECTS:.o=.d) $(CUPTI_PARTS:.o=.d) $(STANDIN_DEVICE:.o=.d)
