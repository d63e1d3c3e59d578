# KV cache bytes over context, by each source, on the formula's line; below, what each source has beyond the formula.
load 'plots/style.gp'

all = ''; slopes = ''
largest = 0.0; above = 0.0; below = 0.0; drivers = 0
beyond(column_name) = (num(column_name) - num('kv_formula_bytes')) / MiB
note(x) = (above = bigger(above, x), below = smaller(below, x))
stats csv using ( \
    slopes = has_word(all, @row_key) ? slopes : slopes.sprintf('%.9g ', num('kv_formula_bytes') / num('context')), \
    all = add_word(all, @row_key), largest = bigger(largest, num('context')), \
    note(beyond('kv_tensor_bytes')), note(beyond('kv_ledger_bytes')), note(beyond('driver_bytes')), \
    drivers = drivers + known(num('driver_bytes')), 0) nooutput
one = words(all) == 1
span = above > below ? above - below : 1.0

# The fitted slopes stand in the legend (of one series; several would need a table).
slope_formula = ''; slope_tensors = ''; slope_ledger = ''; slope_driver = ''
remember(source, text) = \
    source eq 'tensors' ? (slope_tensors = text) : source eq 'ledger' ? (slope_ledger = text) : (slope_driver = text)
if (one && rows(fit)) {
    stats fit using (slope_formula = ': '.commas(int(num('formula_bytes_per_token'))).' bytes per token', \
        remember(strcol('source'), sprintf(': slope %s (%+.3f %%)', tenths(num('slope_bytes_per_token')), \
            num('deviation_percent'))), 0) nooutput
}

# The published points belong to Qwen2.5-1.5B in bf16: they stand on that model's own line, whatever the reader's is.
published = lessons.'/slope.csv'
published_slope = 28672.0

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 800)
    set multiplot
    set lmargin 11; set rmargin 3
    set xrange [0 : largest * 1.06]

    set origin 0, 0.32; set size 1, 0.68
    set title 'KV cache over context: '.heading(all)
    set ylabel 'KV cache, MiB'
    unset xlabel
    set yrange [0 : *]
    set ytics autofreq
    set format x ''
    set key left top
    plot for [i = 1:words(all)] real(word(slopes, i)) * x / MiB with lines ls 1 \
             title i == 1 ? 'formula'.slope_formula : '', \
         csv using (num('context')):(num('kv_tensor_bytes') / MiB) with points ls 2 title 'tensors'.slope_tensors, \
         csv using (num('context')):(num('kv_ledger_bytes') / MiB) with points ls 3 title 'ledger'.slope_ledger, \
         csv using (num('context')):(given(drivers, num('driver_bytes') / MiB)) with points ls 4 \
             title drivers ? 'driver'.slope_driver : '', \
         for [i = 1:words(all)] csv using (in_series(word(all, i), num('context'))): \
             (num('kv_formula_bytes') / MiB):(one || num('context') < largest ? '' : word(all, i)) \
             with labels right offset -1, 0.6 notitle, \
         published_slope * x / MiB with lines ls 5 notitle, \
         published using (num('context')):(num('kv_mb') * MB / MiB) with points ls 5 \
             title 'published: Qwen2.5-1.5B bf16, RTX 3060'

    set origin 0, 0; set size 1, 0.32
    unset title
    unset key
    set ylabel 'beyond formula, MiB'
    set xlabel 'context, tokens'
    set format x '%.0f'
    set yrange [below - span * 0.1 : above + span * 0.1]
    set ytics tic_step(span)
    plot 0 with lines ls 1, \
         csv using (num('context')):(beyond('kv_tensor_bytes')) with points ls 2, \
         csv using (num('context')):(beyond('kv_ledger_bytes')) with points ls 3, \
         csv using (num('context')):(given(drivers, beyond('driver_bytes'))) with points ls 4
    unset multiplot
    unset output
}
