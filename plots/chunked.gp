# A long prompt among eight sequences that decode, over the chunk size: the longest and the usual gap between two of their
# tokens, and the newcomer's time to first token; below, the peak workspace of a pass.
load 'plots/style.gp'

all = ''; least = 1e18; most = 1.0; slowest = 0.0; fastest = 1e18; prompt = 0; tallest = 0.0
stats csv using (all = add_word(all, @row_key), least = smaller(least, num('chunk_tokens')), most = bigger(most, num('chunk_tokens')), \
    slowest = bigger(bigger(slowest, num('ttft_ms')), num('itl_ms_max')), fastest = smaller(fastest, num('itl_ms_p50')), \
    prompt = bigger(prompt, num('prompt_tokens')), tallest = bigger(tallest, num('peak_workspace_bytes')), 0) nooutput
each(i, value) = in_series(word(all, i), value)
named(i, what) = words(all) == 1 ? what : what.', '.word(all, i)

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 820)
    set multiplot
    set lmargin 11; set rmargin 4
    set logscale x
    set xrange [least / 1.25 : most * 1.25]
    do for [i = 0:20] { if (i == 0) { set xtics (sprintf('%g', 2**i) 2**i) } else { set xtics add (sprintf('%g', 2**i) 2**i) } }

    set origin 0, 0.36; set size 1, 0.64
    set title 'A prompt of '.commas(int(prompt)).' tokens among eight that decode: '.heading(all)
    set ylabel 'ms'
    unset xlabel
    set logscale y
    set yrange [fastest / 1.6 : slowest * 1.6]
    set format y '%.10g'
    set key above center vertical maxrows 2 font font.',12'
    plot for [i = 1:words(all)] csv using (each(i, num('chunk_tokens'))):(num('ttft_ms')) \
             with linespoints lc rgb orange lw 2 dt (6,4) pt 9 ps 1.5 title named(i, 'the newcomer: time to first token'), \
         for [i = 1:words(all)] csv using (each(i, num('chunk_tokens'))):(num('itl_ms_max')) \
             with linespoints lc rgb blue lw 2 pt 5 ps 1.4 title named(i, 'the others: longest gap between tokens'), \
         for [i = 1:words(all)] csv using (each(i, num('chunk_tokens'))):(num('itl_ms_p50')) \
             with linespoints lc rgb black lw 2 dt (2,4) pt 6 ps 1.5 title named(i, 'the others: median gap')

    set origin 0, 0; set size 1, 0.36
    unset title
    unset logscale y
    set key inside top left vertical maxrows 2
    set ylabel 'workspace, MiB'
    set xlabel 'chunk: rows of a step, tokens'
    set yrange [0 : tallest / MiB * 1.35]
    set ytics tic_step(tallest / MiB)
    plot for [i = 1:words(all)] csv using (each(i, num('chunk_tokens'))):(num('workspace_formula_bytes') / MiB) with lines ls 1 title i == 1 ? 'formula' : '', \
         for [i = 1:words(all)] csv using (each(i, num('chunk_tokens'))):(num('peak_workspace_bytes') / MiB) with points ls 3 title i == 1 ? 'ledger: peak' : ''
    unset multiplot
    unset output
}
