/* YAML files of a configuration, by libyaml's events. Its parser keeps little more than the token
 * it is at, and reading ends at the first event that a configuration cannot have: so what a file
 * can cost is bounded by CONFIG_MOST_BYTES. */
#include "apps/tools/train_net/config.h"
#include "tensor/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef TD_HAVE_YAML
#include <yaml.h>

enum { NAME_BYTES = 128, WHERE_BYTES = 512, MOST_NODES = 16 };

typedef struct reader {
    const config_schema *schema;
    void *values;
    const char *name;
    yaml_parser_t parser;
    yaml_event_t event;
    bool has_event;
    char where[WHERE_BYTES];            /* "file.yaml:3", of the event */
    int64_t given[CONFIG_MOST_KEYS];    /* the line on which a key was given; 0: not yet */
    char nodes[MOST_NODES][NAME_BYTES]; /* that were given */
    int node_count;
} reader;

static void set_where(reader *r, size_t line)
{
    snprintf(r->where, sizeof r->where, "%s:%zu", r->name, line + 1);
}

static td_status refuse(const reader *r, const char *what)
{
    return td_fail(TD_E_FORMAT, "%s: %s", r->where, what);
}

static td_status not_yaml(reader *r)
{
    if (r->parser.error == YAML_MEMORY_ERROR) {
        return td_fail(TD_E_NOMEM, "%s: no memory to read it", r->name);
    }
    set_where(r, r->parser.problem_mark.line);
    return td_fail(TD_E_FORMAT, "%s: this is not YAML: %s", r->where,
                   r->parser.problem != NULL ? r->parser.problem : "unreadable");
}

/* Anchors, aliases and tags. */
static td_status check_plain(const reader *r)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (e->type) {
    case YAML_ALIAS_EVENT:
        anchor = e->data.alias.anchor;
        break;
    case YAML_SCALAR_EVENT:
        anchor = e->data.scalar.anchor;
        tag = e->data.scalar.tag;
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = e->data.sequence_start.anchor;
        tag = e->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = e->data.mapping_start.anchor;
        tag = e->data.mapping_start.tag;
        break;
    default:
        break;
    }
    return anchor != NULL
               ? refuse(r, "anchors and aliases (&, *) are not read; write the value out")
           : tag != NULL ? refuse(r, "tags (!) are not read; leave it out")
                         : TD_OK;
}

static td_status next(reader *r)
{
    if (r->has_event) {
        yaml_event_delete(&r->event);
        r->has_event = false;
    }
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        return not_yaml(r);
    }
    r->has_event = true;
    set_where(r, r->event.start_mark.line);
    return check_plain(r);
}

/* The text of a scalar event; TD_E_FORMAT if it holds a zero byte, which no text here may. */
static td_status scalar_text(const reader *r, const char **text)
{
    *text = (const char *)r->event.data.scalar.value;
    return strlen(*text) == r->event.data.scalar.length ? TD_OK
                                                        : refuse(r, "a zero byte in a value");
}

/* "TRAIN" and "BATCH_SIZE" -> "TRAIN.BATCH_SIZE", cut off where no key is so long. */
static td_status read_name(const reader *r, const char *node, char *name)
{
    const char *key;
    if (r->event.type != YAML_SCALAR_EVENT) {
        return refuse(r, "a key must be a word: KEY: VALUE");
    }
    TD_TRY(scalar_text(r, &key));
    snprintf(name, NAME_BYTES, "%s%s%.*s", node, *node != '\0' ? "." : "", NAME_BYTES / 2, key);
    return TD_OK;
}

static td_status read_list(reader *r, const config_key *key)
{
    TD_TRY(config_list_begin(key, r->values, r->where));
    for (;;) {
        TD_TRY(next(r));
        if (r->event.type == YAML_SEQUENCE_END_EVENT) {
            return TD_OK;
        }
        if (r->event.type != YAML_SCALAR_EVENT) {
            return td_fail(TD_E_FORMAT, "%s: %s: its list holds numbers only", r->where, key->name);
        }
        const char *text;
        TD_TRY(scalar_text(r, &text));
        TD_TRY(config_list_add(key, r->values, r->where, text));
    }
}

/* The value of a key, of which the event is the first. */
static td_status read_value(reader *r, int i)
{
    const config_key *key = &r->schema->keys[i];
    if (r->given[i] != 0) {
        return td_fail(TD_E_FORMAT, "%s: %s is given a second time; the first is on line %lld",
                       r->where, key->name, (long long)r->given[i]);
    }
    r->given[i] = (int64_t)r->event.start_mark.line + 1;
    if (r->event.type == YAML_SEQUENCE_START_EVENT) {
        return read_list(r, key);
    }
    if (r->event.type != YAML_SCALAR_EVENT) {
        return td_fail(TD_E_FORMAT, "%s: %s takes a value, and has no keys below it", r->where,
                       key->name);
    }
    const char *text;
    TD_TRY(scalar_text(r, &text));
    bool quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    bool nothing = *text == '\0' && !quoted; /* "KEY:" and no more */
    return config_set_scalar(key, r->values, r->where, nothing ? "None" : text, quoted);
}

static td_status note_node(reader *r, const char *node)
{
    for (int i = 0; i < r->node_count; i++) {
        if (strcmp(r->nodes[i], node) == 0) {
            return td_fail(TD_E_FORMAT, "%s: the node %s is given a second time", r->where, node);
        }
    }
    if (r->node_count < MOST_NODES) {
        snprintf(r->nodes[r->node_count++], NAME_BYTES, "%s", node);
    }
    return TD_OK;
}

static td_status read_mapping(reader *r, const char *node);

/* What stands below a node: a mapping, or nothing at all. */
static td_status read_node(reader *r, const char *node)
{
    TD_TRY(note_node(r, node));
    if (r->event.type == YAML_MAPPING_START_EVENT) {
        return read_mapping(r, node);
    }
    return r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0
               ? TD_OK
               : td_fail(TD_E_FORMAT, "%s: %s is a node: it takes lines KEY: VALUE below it",
                         r->where, node);
}

/* NOLINTNEXTLINE(misc-no-recursion): a node in a node is refused, so it is at most two deep. */
static td_status read_mapping(reader *r, const char *node)
{
    for (;;) {
        char name[NAME_BYTES];
        TD_TRY(next(r));
        if (r->event.type == YAML_MAPPING_END_EVENT) {
            return TD_OK;
        }
        TD_TRY(read_name(r, node, name));
        int i = config_find(r->schema, name);
        bool is_node = *node == '\0' && config_has_node(r->schema, name);
        if (i < 0 && !is_node) {
            return config_unknown(r->schema, r->where, name);
        }
        TD_TRY(next(r));
        TD_TRY(is_node ? read_node(r, name) : read_value(r, i));
    }
}

/* One document that is a mapping, or none. */
static td_status read_stream(reader *r)
{
    TD_TRY(next(r)); /* the stream's start */
    TD_TRY(next(r));
    if (r->event.type == YAML_STREAM_END_EVENT) {
        return TD_OK;
    }
    TD_TRY(next(r)); /* what the document holds */
    if (r->event.type != YAML_MAPPING_START_EVENT) {
        return refuse(r, "a configuration has lines KEY: VALUE");
    }
    TD_TRY(read_mapping(r, ""));
    TD_TRY(next(r)); /* the document's end */
    TD_TRY(next(r));
    return r->event.type == YAML_STREAM_END_EVENT
               ? TD_OK
               : refuse(r, "a second document begins; a configuration is one");
}

td_status config_parse(const config_schema *schema, void *values, const char *name,
                       const void *bytes, size_t size)
{
    if (size > CONFIG_MOST_BYTES) {
        return td_fail(TD_E_FORMAT, "%s: %zu bytes; a configuration has at most %d", name, size,
                       CONFIG_MOST_BYTES);
    }
    reader *r = calloc(1, sizeof *r);
    if (r == NULL || !yaml_parser_initialize(&r->parser)) {
        free(r);
        return td_fail(TD_E_NOMEM, "%s: no memory to read it", name);
    }
    r->schema = schema;
    r->values = values;
    r->name = name;
    yaml_parser_set_input_string(&r->parser, bytes, size);
    td_status status = read_stream(r);
    if (r->has_event) {
        yaml_event_delete(&r->event);
    }
    yaml_parser_delete(&r->parser);
    free(r);
    return status;
}

#else

td_status config_parse(const config_schema *schema, void *values, const char *name,
                       const void *bytes, size_t size)
{
    (void)schema, (void)values, (void)bytes, (void)size;
    return td_fail(TD_E_UNSUPPORTED,
                   "%s: this build reads no YAML: libyaml is missing; make deps, then make", name);
}

#endif

td_status config_read(const config_schema *schema, void *values, const char *path)
{
    FILE *in;
    TD_TRY(td_open_to_read(path, &in));
    char *bytes = malloc(CONFIG_MOST_BYTES + 1);
    if (bytes == NULL) {
        fclose(in);
        return td_fail(TD_E_NOMEM, "%s: no memory to read it", path);
    }
    size_t size = fread(bytes, 1, CONFIG_MOST_BYTES + 1, in);
    td_status status = ferror(in)
                           ? td_fail(TD_E_IO, "%s: cannot be read: %s", path, strerror(errno))
                           : config_parse(schema, values, path, bytes, size);
    fclose(in);
    free(bytes);
    return status;
}
