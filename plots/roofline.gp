# Prefill and decode on the two roofs that the machine's own ceilings make: FLOPs per second over FLOPs per byte, both axes
# logarithmic. Left of the balance point reading is the roof, right of it arithmetic.
load 'plots/style.gp'

all = ''; roofs = ''; leftmost = 1e18; rightmost = 0.0; lowest = 1e18; highest = 0.0
roof(unused) = strcol('matrix_ceiling_tflops').' '.strcol('read_ceiling_gbps').' '
stats csv using (all = add_word(all, @row_key), \
    roofs = known(num('matrix_ceiling_tflops')) && strstrt(roofs, roof(0)) == 0 ? roofs.roof(0) : roofs, \
    leftmost = smaller(leftmost, num('intensity_flop_per_byte')), rightmost = bigger(rightmost, num('intensity_flop_per_byte')), \
    lowest = smaller(lowest, num('tflops')), highest = bigger(bigger(highest, num('tflops')), num('matrix_ceiling_tflops')), \
    rightmost = bigger(rightmost, num('balance_flop_per_byte')), leftmost = smaller(leftmost, num('balance_flop_per_byte')), 0) nooutput
matrix(i) = real(word(roofs, 2 * i - 1)); read(i) = real(word(roofs, 2 * i)) / 1e3   # TFLOP/s, TB/s
count = words(roofs) / 2

# The lesson's points with their own roofs stand only beside a GPU's.
published = lessons.'/roofline.csv'
same = strstrt(all, 'cuda') > 0
published_matrix = 27.63; published_read = 0.3183
if (same) { lowest = smaller(lowest, 0.15); leftmost = smaller(leftmost, 0.9); rightmost = bigger(rightmost, 4500); highest = bigger(highest, published_matrix) }

of_phase(p, s, x) = strcol('phase') eq p && series_key(strcol('model'), strcol('device'), strcol('dtype')) eq s ? x : NaN
name_of(unused) = (strcol('phase') eq 'prefill' ? commas(int(num('tokens'))).' tokens' : 'batch '.strcol('tokens'))
said(i, what) = words(all) > 1 ? what.': '.word(all, i) : what

do for [format in 'png svg'] {
    eval open_picture(format, 1000, 760)
    set title 'Roofline: '.heading(all)
    set xlabel 'intensity, FLOP per byte'
    set ylabel 'TFLOP/s'
    set logscale xy
    set format xy '%.10g'
    set xrange [leftmost / 2 : rightmost * 4]
    set yrange [lowest / 2.5 : highest * 2.2]
    set lmargin 12; set rmargin 4; set bmargin 9
    set key outside bottom center horizontal maxrows 3 samplen 3 font font.',12'
    set samples 400
    do for [i = 1:count] {
        set arrow i from matrix(i) / read(i), graph 0 to matrix(i) / read(i), matrix(i) nohead lc rgb purple lw 1.5 dt (9,4,2,4)
        if (count == 1) {
            set label 1 sprintf(' balance: %s FLOP/byte', short(matrix(1) / read(1))) at matrix(1) / read(1), graph 0.04 left font font.',12'
            set label 2 sprintf('matrix ceiling %s TFLOP/s', short(matrix(1))) at graph 0.985, first matrix(1) right offset 0, 0.7 font font.',12'
            set label 3 sprintf('read ceiling %s GB/s', short(read(1) * 1e3)) at leftmost / 1.8, smaller(read(1) * leftmost * 6, matrix(1) * 0.9) left font font.',12'
        }
    }
    plot for [i = 1:count] x < matrix(i) / read(i) ? read(i) * x : matrix(i) with lines ls 1 lw 3 \
             title i == 1 ? 'roofs: read ceiling * intensity, matrix ceiling' : '', \
         for [i = 1:words(all)] csv using (of_phase('prefill', word(all, i), num('intensity_flop_per_byte'))):(num('tflops')) \
             with linespoints lc rgb orange lw 1 dt (2,4) pt point(i) ps 1.7 title said(i, 'prefill'), \
         for [i = 1:words(all)] csv using (of_phase('decode', word(all, i), num('intensity_flop_per_byte'))):(num('tflops')) \
             with linespoints lc rgb blue lw 1 dt (2,4) pt point(i) - 1 ps 1.7 title said(i, 'decode, one step'), \
         csv using (strcol('phase') eq 'prefill' ? num('intensity_flop_per_byte') : NaN):(num('tflops')):(name_of(0)) \
             with labels center offset 0, -1.2 font font.',11' notitle, \
         csv using (strcol('phase') eq 'decode' ? num('intensity_flop_per_byte') : NaN):(num('tflops')):(name_of(0)) \
             with labels left offset 1.2, 0.35 font font.',11' notitle, \
         same ? (x < published_matrix / published_read ? published_read * x : published_matrix) : 1e-9 \
             with lines lc rgb green lw 1 dt (2,4) notitle, \
         published using (num('tflops') / num('gbps') * 1e3):(same ? num('tflops') : 1e-9) with points ls 5 \
             title same ? 'published: Qwen2.5-1.5B bf16, RTX 3060' : ''
    unset label; unset arrow
    unset output
}
