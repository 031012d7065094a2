/* Shows training runs as one page: curves, settings, and where the time and the memory of steps go.
 *
 *   cifar_resnet18 --log-dir exp --trace exp/trace.json
 *   report exp -o exp.html
 *   report exp other -o both.html
 *
 * RUN is a folder with metrics.csv, settings.json and trace.json, or a single trace or metrics.csv.
 * The page is one file that needs no network. docs/report.md reads one. */
#include "apps/tools/common/cli.h"
#include "apps/tools/report/report.h"

int main(int argc, char **argv)
{
    const char *out = "report.html";
    cli_option options[] = {
        cli_text("out", "FILE", &out, "The page to write", .first = true, .letter = 'o'),
    };
    cli_rest rest = { .name = "RUN...", .wanted = "one run", .least = 1 };
    cli_parse_rest(argc, argv,
                   "Shows training runs as one page (HTML): their curves, settings, and "
                   "where time and memory go.",
                   options, sizeof options / sizeof *options, &rest);
    if (report_write(out, rest.values, rest.count) != TD_OK) {
        return app_failed("report");
    }
    printf("%s\n", out);
    return 0;
}
