# Questions after one system prompt, request by request: prefill time with the prefix cache off and on; below, the bytes of
# blocks that each request took.
load 'plots/style.gp'

all = ''; last = 1.0; slowest = 0.0; fastest = 1e18; most_bytes = 0.0; least_bytes = 1e18; prompt = 0; hit = 0
stats csv using (all = add_word(all, @row_key), last = bigger(last, num('request')), slowest = bigger(slowest, num('prefill_ms')), \
    fastest = smaller(fastest, num('prefill_ms')), most_bytes = bigger(most_bytes, num('kv_allocated_bytes')), \
    least_bytes = smaller(least_bytes, num('kv_allocated_bytes')), prompt = bigger(prompt, num('prompt_tokens')), \
    hit = bigger(hit, num('hit_tokens')), 0) nooutput
summary = results.'/'.name.'_summary.csv'
said = ''
if (rows(summary)) {
    stats summary using (said = sprintf(': %s times as fast, %s times less computed', short(num('prefill_ratio')), \
        short(num('computed_ratio'))), 0) nooutput
}
of(side, value) = strcol('prefix_cache') eq side ? value : NaN

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 800)
    set multiplot
    set lmargin 11; set rmargin 4
    set xrange [0.5 : last + 0.5]
    set xtics 1, bigger(1, int(last / 12))

    set origin 0, 0.45; set size 1, 0.55
    set title sprintf('Prompts of %s tokens, up to %s of them found: %s', commas(int(prompt)), commas(int(hit)), heading(all))
    set ylabel 'prefill, ms'
    unset xlabel
    set logscale y
    set yrange [fastest / 3 : slowest * 2]
    set format y '%.10g'
    set key above center vertical maxrows 2 font font.',12'
    plot csv using (of('off', num('request'))):(num('prefill_ms')) with points lc rgb orange lw 2 pt 9 ps 1.5 title 'prefix cache off', \
         csv using (of('on', num('request'))):(num('prefill_ms')) with points lc rgb blue lw 2 pt 6 ps 1.8 title 'prefix cache on'.said, \
         csv using (of('on', num('request') == 1 ? 1 : NaN)):(num('prefill_ms')):('  the first finds nothing') \
             with labels left offset 1, -1 font font.',12' notitle

    set origin 0, 0; set size 1, 0.45
    unset title
    set key inside top right vertical maxrows 3
    set ylabel 'KiB of blocks taken'
    set xlabel 'request'
    set yrange [least_bytes / KiB / 3 : most_bytes / KiB * 4]
    plot csv using (of('off', num('request'))):(num('kv_formula_bytes') / KiB) with lines ls 1 title 'formula: blocks of what is not found', \
         csv using (of('on', num('request'))):(num('kv_formula_bytes') / KiB) with lines ls 1 notitle, \
         csv using (of('off', num('request'))):(num('kv_allocated_bytes') / KiB) with points lc rgb orange lw 2 pt 9 ps 1.5 title 'off, counted', \
         csv using (of('on', num('request'))):(num('kv_allocated_bytes') / KiB) with points lc rgb blue lw 2 pt 6 ps 1.8 title 'on, counted'
    unset multiplot
    unset output
}
