/* Token files: llm.c's header, plain numbers, bytes. */
#include "data/text/token_file.h"
#include "tensor/system/files.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { HEADER_BYTES = TD_TOKEN_HEADER * (int)sizeof(int32_t) };
enum { FIRST_MAGIC = 20240101, LAST_MAGIC = 20291231 }; /* llm.c marks its files by dates */
enum { MAGIC, VERSION, COUNT, VOCABULARY };             /* words of the header */

static const struct token_kind {
    int32_t magic, version;
    int width, vocabulary;
} kinds[] = {
    { 20240520, 1, 2, 50257 },  /* GPT-2 */
    { 20240801, 7, 4, 128256 }, /* Llama 3 */
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static td_status read_header(const int32_t *header, int64_t size, const char *name,
                             td_token_layout *layout)
{
    const struct token_kind *kind = kinds;
    while (kind < kinds + KINDS && kind->magic != header[MAGIC]) {
        kind++;
    }
    TD_CHECK(kind != kinds + KINDS, TD_E_FORMAT,
             "%s: begins with %d, as another kind of llm.c's files; token files begin "
             "with %d or %d",
             name, header[MAGIC], kinds[0].magic, kinds[1].magic);
    TD_CHECK(header[VERSION] == kind->version, TD_E_FORMAT,
             "%s: the header's version is %d; version %d can be read", name, header[VERSION],
             kind->version);
    int64_t tokens = (size - HEADER_BYTES) / kind->width;
    TD_CHECK(header[COUNT] == tokens && (size - HEADER_BYTES) % kind->width == 0, TD_E_FORMAT,
             "%s: the header says %d tokens of %d bytes, and %lld bytes follow it: the "
             "file is cut off or damaged; make it again",
             name, header[COUNT], kind->width, (long long)(size - HEADER_BYTES));
    *layout = (td_token_layout){ .width = kind->width,
                                 .offset = HEADER_BYTES,
                                 .count = tokens,
                                 .vocabulary = kind->vocabulary };
    if (header[VOCABULARY] > 0) {
        layout->vocabulary = header[VOCABULARY];
        layout->declared = true;
    }
    return TD_OK;
}

static td_status read_plain(int width, int64_t size, const char *name, td_token_layout *layout)
{
    TD_CHECK(size % width == 0, TD_E_FORMAT,
             "%s: %lld bytes are no whole number of tokens of %d bytes: the file is cut "
             "off, or of another format (.format)",
             name, (long long)size, width);
    *layout = (td_token_layout){ .width = width,
                                 .count = size / width,
                                 .vocabulary = width == 1 ? UINT8_MAX + 1 : 0 };
    return TD_OK;
}

static bool ends_in(const char *name, const char *end)
{
    size_t length = strlen(name), tail = strlen(end);
    return length >= tail && strcmp(name + length - tail, end) == 0;
}

td_status td_token_layout_read(const void *bytes, int64_t size, const char *name,
                               td_token_format format, td_token_layout *layout)
{
    int32_t header[TD_TOKEN_HEADER] = { 0 };
    TD_CHECK(size != 0, TD_E_FORMAT, "%s: the file is empty", name);
    memcpy(header, bytes, (size_t)(size < HEADER_BYTES ? size : HEADER_BYTES));
    bool marked = header[MAGIC] >= FIRST_MAGIC && header[MAGIC] <= LAST_MAGIC;
    if (format == TD_TOKENS_BYTES || !marked) {
        int width = format == TD_TOKENS_U32 ? 4 : format == TD_TOKENS_U16 ? 2 : 1;
        bool numbers = format == TD_TOKENS_AUTO && ends_in(name, ".bin");
        return read_plain(numbers ? 2 : width, size, name, layout);
    }
    TD_CHECK(size >= HEADER_BYTES, TD_E_FORMAT,
             "%s: the file is cut off after %lld bytes of its header", name, (long long)size);
    TD_TRY(read_header(header, size, name, layout));
    TD_CHECK(format == TD_TOKENS_AUTO || layout->width == (format == TD_TOKENS_U16 ? 2 : 4),
             TD_E_FORMAT, "%s: the header says tokens of %d bytes, and .format does not", name,
             layout->width);
    return TD_OK;
}

td_status td_token_header(int width, int64_t count, int64_t vocabulary,
                          int32_t header[TD_TOKEN_HEADER])
{
    TD_CHECK(count <= INT32_MAX && vocabulary <= INT32_MAX, TD_E_ARG,
             "llm.c's header cannot say %lld tokens; write several files", (long long)count);
    const struct token_kind *kind = width == kinds[0].width ? &kinds[0] : &kinds[1];
    memset(header, 0, HEADER_BYTES);
    header[MAGIC] = kind->magic;
    header[VERSION] = kind->version;
    header[COUNT] = (int32_t)count;
    header[VOCABULARY] = (int32_t)vocabulary;
    return TD_OK;
}

td_status td_map_file(const char *path, const unsigned char **map, int64_t *size)
{
    FILE *file;
    struct stat info;
    TD_TRY(td_open_to_read(path, &file));
    bool known = fstat(fileno(file), &info) == 0;
    void *mapped = NULL;
    if (known && info.st_size > 0) {
        mapped = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fileno(file), 0);
    }
    int error = errno;
    fclose(file);
    TD_CHECK(known && mapped != MAP_FAILED, TD_E_IO, "%s: cannot be mapped: %s", path,
             strerror(error));
    *map = mapped;
    *size = info.st_size;
    return TD_OK;
}

uint32_t td_token_at(const unsigned char *map, const td_token_layout *layout, int64_t i)
{
    const unsigned char *at = map + layout->offset + i * layout->width;
    uint32_t token = *at;
    for (int byte = 1; byte < layout->width; byte++) { /* little-endian */
        token |= (uint32_t)at[byte] << 8 * byte;
    }
    return token;
}
