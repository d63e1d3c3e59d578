# The cache's types side by side: bytes per token against the formula, the error of the logits beside what the type rounds
# by, and a decode step at the longest context against the time that reading its bytes takes.
load 'plots/style.gp'

all = ''; longest = 0.0; scored = 0; worst = 0.0; least = 1e300; slowest = 0.0; published = ''
place(type) = type eq 'f32' ? 1 : type eq 'f16' ? 2 : type eq 'bf16' ? 3 : type eq 'fp8' ? 4 : 5
positive(x) = x > 0 ? x : NaN
note(x) = (worst = bigger(worst, x), least = smaller(least, positive(x)))
stats csv using (all = add_word(all, @row_key), longest = bigger(longest, num('context')), \
    scored = scored + known(num('max_logit_error')), \
    note(num('max_logit_error')), note(num('rms_logit_error')), 0) nooutput
stats csv using (slowest = bigger(slowest, num('context') == longest ? \
    bigger(num('tpot_ms_p50'), num('predicted_ms')) : NaN), 0) nooutput
largest = 0.0
stats csv using (largest = bigger(largest, num('kv_bytes_per_token')), 0) nooutput

# Rows of the longest context, and those with a text; of several series the first is drawn.
one = word(all, 1)
at_longest(value) = num('context') == longest ? in_series(one, value) : NaN
in_text(value) = known(num('max_logit_error')) ? in_series(one, value) : NaN
x = "place(strcol('kv_dtype'))"
formula_per_token(row) = num('kv_formula_bytes') / num('context')
saved(percent) = percent == 0 ? '0 %' : sprintf('%+.1f %%', -percent)
delta(percent) = percent == 0 ? '' : sprintf('%+.3f %%', percent)

do for [format in 'png svg'] {
    eval open_picture(format, 1280, 560)
    set multiplot layout 1, 3 title 'Types of the KV cache: '.one offset 0, -0.5
    set xrange [0.4 : 5.6]
    set xtics ('f32' 1, 'f16' 2, 'bf16' 3, 'fp8' 4, 'int8' 5)
    set boxwidth 0.55
    set style fill solid 0.25 border -1
    set tmargin 5

    set title 'bytes per token'
    set yrange [0 : largest * 1.15]
    set format y '%.0f'
    set key right top
    plot csv using (@x):(at_longest(num('kv_bytes_per_token'))) with boxes lc rgb blue title 'tensors', \
         csv using (@x):(at_longest(formula_per_token(0))) with points pt 2 ps 1.6 lw 2 lc rgb black title 'formula', \
         csv using (@x):(at_longest(num('kv_bytes_per_token')) + largest * 0.04): \
             (saved(num('bytes_saved_percent'))) with labels font font.',10' notitle

    if (scored) {
        set title 'error of a logit against the f32 cache'
        set logscale y 10
        set yrange [least / 3 : worst * 12]
        set format y '%.0e'
        set key left top
        plot csv using (@x):(in_text(positive(num('max_logit_error')))) with points ls 4 title 'largest', \
             csv using (@x):(in_text(positive(num('rms_logit_error')))) with points ls 2 title 'root mean square', \
             csv using (@x):(in_text(positive(num('max_logit_error'))) * 1.7):(delta(num('perplexity_delta_percent'))) \
                 with labels font font.',10' notitle, \
             NaN with lines lc rgb 'white' title 'above: change of perplexity'
        unset logscale y
    } else {
        set title 'no text was predicted: synthetic weights'
        set yrange [0 : 1]; unset ytics
        plot NaN notitle
        set ytics autofreq
    }

    set title 'a step at '.commas(int(longest)).' tokens, ms'
    set yrange [0 : slowest * 1.35]
    set format y '%g'
    set key right top
    plot csv using (@x):(at_longest(num('tpot_ms_p50'))) with boxes lc rgb orange title 'measured', \
         csv using (@x):(at_longest(num('tpot_ms_p50'))):(num('tpot_ms_p10')):(num('tpot_ms_p90')) \
             with yerrorbars pt 0 lw 1.5 lc rgb black title '10 to 90 % of steps', \
         csv using (@x):(at_longest(num('predicted_ms'))) with points pt 2 ps 1.6 lw 2 lc rgb black \
             title 'bytes / bandwidth'
    unset multiplot
    unset output
}
