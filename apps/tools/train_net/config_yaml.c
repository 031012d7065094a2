/* YAML files of a configuration: libyaml makes a tree of nodes, which is read here. What a file can
 * cost is bounded by CONFIG_MOST_BYTES: the tree has no more nodes than bytes, and no key may come
 * twice. */
#include "apps/tools/train_net/settings.h"
#include "tensor/system/files.h"

#include <stdlib.h>

#ifdef TD_HAVE_YAML
#include <yaml.h>

enum { NAME_BYTES = 128, WHERE_BYTES = 512 };

typedef struct reader {
    train_args *keys;
    const char *name;
    yaml_document_t document;
    char where[WHERE_BYTES];        /* "file.yaml:3", of the node last looked at */
    int64_t given[CLI_MAX_OPTIONS]; /* the line on which a key was given; 0: not yet */
} reader;

static void set_where(reader *r, size_t line)
{
    snprintf(r->where, sizeof r->where, "%s:%zu", r->name, line + 1);
}

static td_status refuse(const reader *r, const char *what)
{
    return td_fail(TD_E_FORMAT, "%s: %s", r->where, what);
}

static const yaml_node_t *look_at(reader *r, int number)
{
    const yaml_node_t *node = yaml_document_get_node(&r->document, number);
    set_where(r, node->start_mark.line);
    return node;
}

/* The text of a scalar; TD_E_FORMAT if it holds a zero byte, which no text here may. */
static td_status text_of(const reader *r, const yaml_node_t *node, const char **text)
{
    *text = (const char *)node->data.scalar.value;
    return strlen(*text) == node->data.scalar.length ? TD_OK : refuse(r, "a zero byte in a value");
}

/* "TRAIN" and "BATCH_SIZE" -> "TRAIN.BATCH_SIZE", cut off where no key is so long. */
static td_status name_of(const reader *r, const yaml_node_t *node, const char *prefix, char *name)
{
    const char *key;
    if (node->type != YAML_SCALAR_NODE) {
        return refuse(r, "a key must be a word: KEY: VALUE");
    }
    TD_TRY(text_of(r, node, &key));
    snprintf(name, NAME_BYTES, "%s%s%.*s", prefix, *prefix != '\0' ? "." : "", NAME_BYTES / 2, key);
    return TD_OK;
}

/* A list as a command line would give it: "[30,60]". */
static td_status yaml_read_list(reader *r, int i, const yaml_node_t *list)
{
    const cli_option *key = &r->keys->options[i];
    char text[CLI_TEXT_BYTES] = "[";
    size_t used = 1;
    TD_CHECK(key->kind == CLI_REALS, TD_E_FORMAT, "%s: %s takes one value, not a list", r->where,
             key->name);
    for (const int *item = list->data.sequence.items.start; item < list->data.sequence.items.top;
         item++) {
        const yaml_node_t *node = look_at(r, *item);
        const char *number = "";
        TD_TRY(node->type == YAML_SCALAR_NODE ? text_of(r, node, &number) : TD_OK);
        bool one = *number != '\0' && strchr(number, ',') == NULL; /* "30,60" would be two */
        TD_CHECK(one, TD_E_FORMAT, "%s: %s: its list holds numbers only", r->where, key->name);
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%s", used > 1 ? "," : "", number);
        TD_CHECK(used + 1 < sizeof text, TD_E_FORMAT, "%s: %s: its list is too long", r->where,
                 key->name);
    }
    text[used] = ']';
    return config_set_scalar(r->keys, i, r->where, text, false);
}

static td_status yaml_read_value(reader *r, int i, const yaml_node_t *node)
{
    const cli_option *key = &r->keys->options[i];
    TD_CHECK(r->given[i] == 0, TD_E_FORMAT,
             "%s: %s is given a second time; the first is on line %lld", r->where, key->name,
             (long long)r->given[i]);
    r->given[i] = (int64_t)node->start_mark.line + 1;
    if (node->type == YAML_SEQUENCE_NODE) {
        return yaml_read_list(r, i, node);
    }
    TD_CHECK(node->type == YAML_SCALAR_NODE, TD_E_FORMAT,
             "%s: %s takes a value, and has no keys below it", r->where, key->name);
    const char *text;
    TD_TRY(text_of(r, node, &text));
    bool quoted = node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    bool nothing = *text == '\0' && !quoted; /* "KEY:" and no more */
    return config_set_scalar(r->keys, i, r->where, nothing ? "None" : text, quoted);
}

static td_status read_mapping(reader *r, const yaml_node_t *mapping, const char *prefix);

/* What stands below a node: a mapping, or nothing at all. */
static td_status read_node(reader *r, const yaml_node_t *node, const char *name)
{
    if (node->type == YAML_MAPPING_NODE) {
        return read_mapping(r, node, name);
    }
    TD_CHECK(node->type == YAML_SCALAR_NODE && node->data.scalar.length == 0, TD_E_FORMAT,
             "%s: %s is a node: it takes lines KEY: VALUE below it", r->where, name);
    return TD_OK;
}

/* NOLINTNEXTLINE(misc-no-recursion): a node in a node is refused, so it is at most two deep. */
static td_status read_mapping(reader *r, const yaml_node_t *mapping, const char *prefix)
{
    for (const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
         pair < mapping->data.mapping.pairs.top; pair++) {
        char name[NAME_BYTES];
        TD_TRY(name_of(r, look_at(r, pair->key), prefix, name));
        int i = config_find(r->keys, name);
        bool is_node = *prefix == '\0' && config_has_node(r->keys, name);
        if (i < 0 && !is_node) {
            return config_unknown(r->keys, r->where, name);
        }
        const yaml_node_t *value = look_at(r, pair->value);
        TD_TRY(is_node ? read_node(r, value, name) : yaml_read_value(r, i, value));
    }
    return TD_OK;
}

/* *any: there is another document, to be deleted. */
static td_status yaml_load(reader *r, yaml_parser_t *parser, bool *any)
{
    if (!yaml_parser_load(parser, &r->document)) {
        set_where(r, parser->problem_mark.line);
        return parser->error == YAML_MEMORY_ERROR
                   ? td_fail(TD_E_NOMEM, "%s: no memory to read it", r->name)
                   : td_fail(TD_E_FORMAT, "%s: this is not YAML: %s", r->where,
                             parser->problem != NULL ? parser->problem : "unreadable");
    }
    *any = yaml_document_get_root_node(&r->document) != NULL;
    set_where(r, r->document.start_mark.line);
    if (!*any) {
        yaml_document_delete(&r->document);
    }
    return TD_OK;
}

/* One document that is a mapping, or none. */
static td_status read_stream(reader *r, yaml_parser_t *parser)
{
    bool any;
    TD_TRY(yaml_load(r, parser, &any));
    if (!any) {
        return TD_OK;
    }
    const yaml_node_t *root = look_at(r, 1);
    td_status status = root->type == YAML_MAPPING_NODE
                           ? read_mapping(r, root, "")
                           : refuse(r, "a configuration has lines KEY: VALUE");
    yaml_document_delete(&r->document);
    TD_TRY(status);
    TD_TRY(yaml_load(r, parser, &any));
    if (any) {
        yaml_document_delete(&r->document);
    }
    return any ? refuse(r, "a second document begins; a configuration is one") : TD_OK;
}

td_status config_parse(train_args *keys, const char *name, const void *bytes, size_t size)
{
    TD_CHECK(size <= CONFIG_MOST_BYTES, TD_E_FORMAT,
             "%s: %zu bytes; a configuration has at most %d", name, size, CONFIG_MOST_BYTES);
    yaml_parser_t parser;
    TD_CHECK(yaml_parser_initialize(&parser), TD_E_NOMEM, "%s: no memory to read it", name);
    yaml_parser_set_input_string(&parser, bytes, size);
    reader r = { .keys = keys, .name = name };
    td_status status = read_stream(&r, &parser);
    yaml_parser_delete(&parser);
    return status;
}

#else

td_status config_parse(train_args *keys, const char *name, const void *bytes, size_t size)
{
    (void)keys, (void)bytes, (void)size;
    return td_fail(TD_E_UNSUPPORTED,
                   "%s: this build reads no YAML: libyaml is missing; make deps, then make", name);
}

#endif

td_status config_read(train_args *keys, const char *path)
{
    char *bytes;
    size_t size;
    TD_TRY(td_read_file(path, "a configuration", CONFIG_MOST_BYTES, &bytes, &size));
    td_status status = config_parse(keys, path, bytes, size);
    free(bytes);
    return status;
}
