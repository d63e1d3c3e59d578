/* A block's shared memory. Static: the thread_local variables inside kernels and device functions, found in the symbol
   table of the program that holds the kernel, where a variable of function f is named _ZZ<f>E<name> and thread-local.
   Dynamic: one area, placed so that its end meets a page that nothing may touch. */
#include "internal.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <memory>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace standin
{

enum { PAGE_BYTES = 4096, DYNAMIC_BYTES = 256 * 1024, ALIGNMENT = 128 };

struct variable {
    std::string function; /* mangled, without _Z */
    size_t offset, bytes; /* in the program's thread-local storage */
};

struct program { /* the executable, or a shared object */
    std::string path;
    size_t base, end; /* addresses */
    size_t thread_local_id;
    std::map<size_t, std::string> functions; /* address - base -> mangled name without _Z */
    std::vector<variable> variables;
    std::set<std::string> kernels; /* functions that have been launched */
};

static std::vector<std::unique_ptr<program>> programs;
static char *dynamic_area;
static char *dynamic_memory; /* of the running block */
static size_t dynamic_bytes;
static const program *running_program;
static size_t shared_low, shared_high; /* range of the thread-local storage of the running kernel's program */

static void read_symbols(program &p)
{
    int file = open(p.path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0 || fstat(file, &status) != 0)
        fail("cannot read the symbols of %s", p.path.c_str());
    size_t size = (size_t)status.st_size;
    char *image = (char *)mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (image == MAP_FAILED)
        fail("cannot map %s", p.path.c_str());
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)image;
    const ElfW(Shdr) *sections = (const ElfW(Shdr) *)(image + header->e_shoff);
    bool found = false;
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        found = true;
        const ElfW(Sym) *symbols = (const ElfW(Sym) *)(image + sections[i].sh_offset);
        const char *names = image + sections[sections[i].sh_link].sh_offset;
        for (size_t n = 0; n < sections[i].sh_size / sizeof *symbols; n++) {
            const char *name = names + symbols[n].st_name;
            int type = ELF64_ST_TYPE(symbols[n].st_info);
            if (type == STT_FUNC && symbols[n].st_value) /* f in extern "C" is part of a mangled name as 1f */
                p.functions[symbols[n].st_value] =
                    strncmp(name, "_Z", 2) == 0 ? name + 2 : std::to_string(strlen(name)) + name;
            else if (type == STT_TLS && strncmp(name, "_ZZ", 3) == 0)
                p.variables.push_back({name + 3, symbols[n].st_value, symbols[n].st_size});
        }
    }
    munmap(image, size);
    if (!found)
        fail("%s is stripped, so its __shared__ variables cannot be found", p.path.c_str());
}

static int find_program(struct dl_phdr_info *info, size_t, void *data)
{
    program &p = *(program *)data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD || p.base - (info->dlpi_addr + segment.p_vaddr) >= segment.p_memsz)
            continue;
        p.path = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
        p.base = info->dlpi_addr;
        p.thread_local_id = info->dlpi_tls_modid;
        for (i = 0; i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_LOAD)
                p.end = p.base + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        return 1;
    }
    return 0;
}

static program &program_of(const void *kernel)
{
    for (auto &p : programs)
        if ((size_t)kernel >= p->base && (size_t)kernel < p->end)
            return *p;
    auto p = std::make_unique<program>();
    p->base = (size_t)kernel; /* what find_program looks for */
    if (!dl_iterate_phdr(find_program, p.get()))
        fail("no program holds the kernel at %p", kernel);
    read_symbols(*p);
    programs.push_back(std::move(p));
    return *programs.back();
}

static bool belongs(const variable &v, const std::string &function)
{
    return v.function.compare(0, function.size(), function) == 0 && v.function[function.size()] == 'E';
}

/* Calls f with the shared variables that the kernel may use: its own, and those of functions that are not known to be
   other kernels. */
template <typename F> static void for_each_variable(program &p, const void *kernel, bool own_only, F f)
{
    const std::string &name = p.functions[(size_t)kernel - p.base];
    for (const variable &v : p.variables) {
        bool other = own_only;
        if (!own_only)
            for (const std::string &k : p.kernels)
                other = other || (k != name && belongs(v, k));
        if (!other || belongs(v, name))
            f(v);
    }
}

/* The thread-local storage of a program, of the thread that calls. */
extern "C" void *__tls_get_addr(void *);
static char *storage(const program &p)
{
    size_t index[2] = {p.thread_local_id, 0};
    return (char *)__tls_get_addr(index);
}

size_t static_shared_bytes(const void *kernel)
{
    size_t bytes = 0;
    for_each_variable(program_of(kernel), kernel, true, [&](const variable &v) { bytes += v.bytes; });
    return bytes;
}

static std::vector<std::pair<char *, size_t>> poison_list; /* the static variables of the running kernel */

void shared_begin_launch(const launch &launch)
{
    program &p = program_of(launch.kernel);
    running_program = &p;
    p.kernels.insert(p.functions[(size_t)launch.kernel - p.base]);
    poison_list.clear();
    shared_low = SIZE_MAX, shared_high = 0;
    for_each_variable(p, launch.kernel, false, [&](const variable &v) {
        char *memory = storage(p) + v.offset;
        poison_list.push_back({memory, v.bytes});
        shared_low = std::min(shared_low, (size_t)memory);
        shared_high = std::max(shared_high, (size_t)memory + v.bytes);
    });
    if (!dynamic_area) {
        void *memory = mmap(nullptr, DYNAMIC_BYTES + PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, DYNAMIC_BYTES, PROT_READ | PROT_WRITE) != 0)
            fail("no memory for shared memory");
        dynamic_area = (char *)memory;
    }
    dynamic_bytes = launch.shared_bytes;
    dynamic_memory = dynamic_area + DYNAMIC_BYTES - (dynamic_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void shared_begin_block()
{
    for (const auto &[memory, bytes] : poison_list)
        poison(memory, bytes);
    poison(dynamic_memory, (size_t)(dynamic_area + DYNAMIC_BYTES - dynamic_memory));
}

void shared_end_block()
{
    uint16_t expected = STANDIN_POISON;
    const char *end = dynamic_area + DYNAMIC_BYTES;
    for (const char *at = dynamic_memory + dynamic_bytes; at < end; at++)
        if (*at != ((const char *)&expected)[(at - dynamic_memory) % 2])
            fail("a thread wrote past the %zu bytes of dynamic shared memory, to byte %zu", dynamic_bytes,
                 (size_t)(at - dynamic_memory));
}

bool program_address(const void *address)
{
    return (size_t)address >= running_program->base && (size_t)address < running_program->end;
}

bool shared_address(const void *address)
{
    size_t at = (size_t)address;
    return (at >= shared_low && at < shared_high) ||
           (at >= (size_t)dynamic_memory && at < (size_t)dynamic_memory + dynamic_bytes);
}

} // namespace standin

void *standin_dynamic_shared(void)
{
    return standin::dynamic_memory;
}
